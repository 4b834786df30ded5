"""The command line. A command's module is imported when it is called, so that --help is quick."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import sys
from typing import Any

import typer

from lengthwise.arguments import gather
from lengthwise.help_page import GroupedHelp

COMMANDS: dict[str, tuple[str, str]] = {
    "replay": ("lengthwise.replay_cli:replay", "Replay a trace under one policy, simulated."),
    "compare": ("lengthwise.replay_cli:compare", "Replay a trace under several policies."),
    "execute": ("lengthwise.execute_cli:execute", "Run a trace on a real model, measured."),
    "profile": ("lengthwise.profile_cli:profile", "Time single steps of a model on this machine."),
    "plan": ("lengthwise.plan_cli:plan", "Find settings and GPUs that keep an SLO."),
    "sweep": ("lengthwise.sweep_cli:sweep", "Run every combination of settings, into one table."),
    "trace": ("lengthwise.trace_cli:app", "Describe, check, convert, cut and make traces."),
    "report": ("lengthwise.report_cli:report", "Write a web page on runs."),
    "timeline": ("lengthwise.report_cli:timeline", "Write a run as a Perfetto trace."),
    "calibrate": ("lengthwise.calibrate_cli:calibrate", "Fit the cost of a step to measured ones."),
    "validate": ("lengthwise.validate_cli:validate", "Hold predictions against a measured run."),
    "conform": ("lengthwise.conform_cli:conform", "Hold a policy against an engine's recordings."),
}
"""Commands: where each one is, and what it is for."""

EXAMPLES = """\b
Examples:
  lengthwise compare chat --out runs/first
  lengthwise replay TRACE.csv --policy chunked-prefill --hardware h100
  lengthwise report runs/first --out report.html

--help of a command shows its flags. `chat`, `code` and `long-context` are built-in
workloads; NO_COLOR=1 switches colours off.
"""


def build(argv: list[str]) -> typer.Typer:
    """The application, with the command that `argv` names imported and the others only listed."""
    named = next((arg for arg in argv if not arg.startswith("-")), None)
    app = typer.Typer(
        name="lengthwise",
        help="Length-aware scheduling for LLM inference: one policy, simulated and measured.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        epilog=EXAMPLES,
        rich_markup_mode=None,  # panels would cut long flags off
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    completing = any(name.endswith("_COMPLETE") for name in os.environ)
    for name, (place, text) in COMMANDS.items():
        if name != named and not completing:
            app.command(name, help=text)(_listed)
            continue
        module, _, attribute = place.partition(":")
        command: Any = getattr(importlib.import_module(module), attribute)
        if isinstance(command, typer.Typer):
            for registered in command.registered_commands:
                registered.cls = GroupedHelp
            app.add_typer(command, name=name, help=text)
        else:
            app.command(name, cls=GroupedHelp)(command)
    return app


def _listed() -> None:
    """Stands in the list of commands for one that is not called."""


def main() -> None:
    """Run the command line; a user's mistake is one message and exit code 2, never a traceback."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # as Ctrl-C
    gc.set_threshold(100_000)  # what is imported stays: looking at it each 700 objects is in vain
    atexit.register(gc.freeze)  # and so is looking at all of it when the process ends
    try:
        argv = gather(sys.argv[1:])
        build(argv)(argv, prog_name="lengthwise")
    except _user_errors() as error:
        typer.echo(f"lengthwise: {error}", err=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise SystemExit(130) from None
    except SystemExit as ended:  # Typer ends an interrupted command without a word
        if isinstance(getattr(ended.__context__, "__cause__", None), KeyboardInterrupt):
            typer.echo("interrupted", err=True)
        raise
    except BrokenPipeError:
        _no_more_output()
        raise SystemExit(141) from None
    except OSError as error:
        typer.echo(f"lengthwise: {error}", err=True)
        if error.filename is None:  # of a full disk behind the output
            _no_more_output()
        raise SystemExit(2) from None


def _no_more_output() -> None:
    """What is left to print goes nowhere, so that the end of the process does not try again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _user_errors() -> tuple[type[BaseException], ...]:
    from serving.folder import FolderError

    return (ValueError, FolderError)
