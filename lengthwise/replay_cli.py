"""The commands `replay` and `compare`: a trace under one policy, or under several, simulated."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthwise.config import RunConfig, read_config
from lengthwise.flags import takes_run_flags
from policies.compose import NAMED

if TYPE_CHECKING:
    from lengthwise.api import Progress

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
Config = Annotated[
    Path | None,
    typer.Option("--config", help="YAML, TOML or JSON of flags, or a record's config.json."),
]


@takes_run_flags()
def replay(
    trace: Source = None,
    config: Config = None,
    out: Out = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
    *,
    asked: dict[str, Any],
) -> None:
    """Replay a trace under one policy against the simulated clock.

    For example: lengthwise replay trace.csv --policy chunked-prefill --model llama-3.1-8b
    --hardware h100 --max-num-batched-tokens 2048
    """
    from lengthwise.api import read_trace, run
    from lengthwise.console import progress, refusals, replay_table
    from lengthwise.prepare import prepare
    from serving.folder import ensure_free

    settings = RunConfig.of(**_fields(trace, config, asked))
    folder = out or _new_name(Path("runs"), settings.policy)
    ensure_free(folder, force)
    requests = read_trace(settings)
    ready = prepare(settings, requests)
    with progress("replaying", len(requests), quiet or as_json) as bar:
        record = run(ready, requests, _reports(bar))
    record.save(folder, force)
    if as_json:
        typer.echo(json.dumps(record.summary, allow_nan=False))
    else:
        _show(replay_table(record), refusals(record))
        _notes(record.notes, quiet)
        typer.echo(f"record: {folder}")
    _finish([record.summary], record.config)


@takes_run_flags("policy", "layout", "lifecycle")
def compare(
    trace: Source = None,
    policies: Annotated[
        str | None, typer.Option("--policies", help="Names with commas between; all six.")
    ] = None,
    config: Config = None,
    out: Out = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
    *,
    asked: dict[str, Any],
) -> None:
    """Replay a trace under several policies and lay them side by side, with plots.

    For example: lengthwise compare chat --policies static,continuous,chunked-prefill
    """
    from lengthwise.api import own_options, read_trace, run
    from lengthwise.console import compare_table, progress, refusals
    from lengthwise.prepare import prepare
    from serving.folder import ensure_free, new_folder

    names = list(NAMED) if policies is None else [p.strip() for p in policies.split(",")]
    fields = _fields(trace, config, asked)
    for layer in ("policy", "layout", "lifecycle"):
        fields.pop(layer, None)
    requests = read_trace(RunConfig.of(**fields))
    folder = out or _new_name(Path("runs"), "compare")
    ensure_free(folder, force)
    ready = {name: prepare(own_options(name, fields), requests) for name in names}
    records = {}
    for name in names:
        with progress(name, len(requests), quiet or as_json) as bar:
            records[name] = run(ready[name], requests, _reports(bar))
    summaries = {name: record.summary for name, record in records.items()}
    with new_folder(folder, force) as temporary:
        for name, record in records.items():
            inside = temporary / name.replace("/", "_").replace(":", "_")
            inside.mkdir()
            record.write(inside)
        (temporary / "summary.json").write_text(json.dumps({"policies": summaries}, indent=2))
        _plots(records, temporary)
    if as_json:
        typer.echo(json.dumps({"policies": summaries}, allow_nan=False))
    else:
        _show(compare_table(records), *(refusals(record) for record in records.values()))
        said = dict.fromkeys(note for record in records.values() for note in record.notes)
        _notes(tuple(said), quiet)
        typer.echo(f"report: {folder} (latency.png, padding.png, running.png, a record a policy)")
    _finish(list(summaries.values()), next(iter(records.values())).config)


def _fields(trace: str | None, config: Path | None, asked: dict[str, Any]) -> dict[str, Any]:
    """What the configuration file says, then the flags, then the trace."""
    fields = {} if config is None else read_config(config)
    fields.update(asked)
    if trace is not None:
        fields["trace"] = trace
    if fields.get("trace") is None:
        raise typer.BadParameter("give a trace file, or chat, code or long-context")
    return fields


def _new_name(parent: Path, what: str) -> Path:
    """A folder name that is not taken: the time and what was run."""
    plain = "".join(c if c.isalnum() or c in "-_" else "_" for c in what)
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{plain}"
    name, count = parent / stem, 1
    while name.exists():
        count += 1
        name = parent / f"{stem}-{count}"
    return name


def _reports(bar: Callable[[int], None]) -> Progress:
    return lambda done, total: bar(done)


def _plots(records: dict[str, Any], folder: Path) -> None:
    from lengthwise.plots import latency_cdfs, padding, running
    from lengthwise.style import save

    save(latency_cdfs(records), folder / "latency")
    save(padding(records), folder / "padding")
    save(running(records), folder / "running")


def _show(*tables: Any) -> None:
    from lengthwise.console import make_console

    console = make_console()
    for table in tables:
        if table is not None:
            console.print(table)


def _notes(notes: tuple[str, ...], quiet: bool) -> None:
    for note in () if quiet else notes:
        typer.echo(f"note: {note}")


def _finish(summaries: list[dict[str, Any]], config: dict[str, Any]) -> None:
    """The exit code: 130 after Ctrl-C, 1 where a policy could serve nothing at all."""
    if config.get("interrupted"):
        typer.echo("interrupted: the record holds what had run until then", err=True)
        raise typer.Exit(130)
    if any(not summary["completed"] for summary in summaries):
        typer.echo("no request could be served", err=True)
        raise typer.Exit(1)
