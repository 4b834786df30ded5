"""How `--help` looks: flags in groups, nothing cut off on a narrow terminal, an example to copy."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

EXAMPLE = "For example:"
"""What a command's docstring ends with, and a command line that works as it stands."""


class GroupedHelp(TyperCommand):
    """A command whose flags are listed panel by panel, each on a line of its own if it is long."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """What the command does, then its example as one line that can be copied."""
        text, _, example = (self.help or "").partition(EXAMPLE)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text.strip())
        if example:
            with formatter.section("Example"):
                formatter.write(f"{'':{formatter.current_indent}}{' '.join(example.split())}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then flags by panel; those of a command's own come last."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                own = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panel = getattr(parameter, "rich_help_panel", None) or own
                panels.setdefault(panel, []).append(record)
        panels["Options"] = panels.pop("Options", [])
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records, col_max=34)
