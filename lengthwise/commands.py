"""What the commands that make records share: their fields, their folders, and how they end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.config import flatten, read_config

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="TRACE", help="A trace file, or a built-in workload: chat, code, long-context."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder for the record; runs/… if not given."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the folder if it exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON, nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar, no notes.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Also every setting in force, on standard error.")
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="YAML, TOML or JSON of flags, or a record's config.json."),
]


def given_fields(trace: str | None, config: Path | None, asked: dict[str, Any]) -> dict[str, Any]:
    """What the configuration file says, then the flags, then the trace."""
    fields = {} if config is None else read_config(config)
    fields.update(asked)
    if trace is not None:
        fields["trace"] = trace
    if fields.get("trace") is None:
        raise typer.BadParameter("give a trace file, or chat, code or long-context")
    return fields


def new_name(parent: Path, what: str) -> Path:
    """A folder name that is not taken: the time and what was run."""
    plain = "".join(c if c.isalnum() or c in "-_" else "_" for c in what)
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{plain}"
    name, count = parent / stem, 1
    while name.exists():
        count += 1
        name = parent / f"{stem}-{count}"
    return name


def show(*tables: Any) -> None:
    """Print tables to the terminal."""
    from lengthwise.console import make_console

    console = make_console()
    for table in tables:
        if table is not None:
            console.print(table)


def say(notes: tuple[str, ...], quiet: bool) -> None:
    """Print what a reader of the figures should know, a line each."""
    for note in () if quiet else notes:
        typer.echo(f"note: {note}")


def say_settings(configs: Mapping[str, dict[str, Any]]) -> None:
    """Print every setting that was in force, by run, on standard error."""
    for name, config in configs.items():
        for key, value in flatten(config):
            typer.echo(f"{name}: {key} = {value}", err=True)


def finish(summaries: list[dict[str, Any]], config: dict[str, Any]) -> None:
    """The exit code: 130 after Ctrl-C, 1 where a policy could serve nothing at all."""
    if config.get("interrupted"):
        typer.echo("interrupted: the record holds what had run until then", err=True)
        raise typer.Exit(130)
    if any(not summary["completed"] for summary in summaries):
        typer.echo("no request could be served", err=True)
        raise typer.Exit(1)
