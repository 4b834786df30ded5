"""The commands `replay` and `compare`: a trace under one policy, or under several, simulated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.commands import (
    Config,
    Force,
    Json,
    Out,
    Quiet,
    Source,
    Verbose,
    finish,
    given_fields,
    new_name,
    say,
    say_settings,
    show,
)
from lengthwise.config import RunConfig
from lengthwise.flags import takes_run_flags
from policies.compose import NAMED


@takes_run_flags()
def replay(
    trace: Source = None,
    config: Config = None,
    out: Out = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    *,
    asked: dict[str, Any],
) -> None:
    """Replay a trace under one policy against the simulated clock.

    For example: lengthwise replay trace.csv --policy chunked-prefill --model llama-3.1-8b
    --hardware h100 --max-num-batched-tokens 2048
    """
    from lengthwise.api import read_trace, run
    from lengthwise.cluster import prepare_run
    from lengthwise.console import refusals, replay_table
    from lengthwise.live import live
    from serving.folder import ensure_free, new_folder

    settings = RunConfig.of(**given_fields(trace, config, asked))
    folder = out or new_name(Path("runs"), settings.policy)
    ensure_free(folder, force)
    requests = read_trace(settings)
    ready = prepare_run(settings, requests)
    with new_folder(folder, force) as temporary:
        with live("replaying", len(requests), *ready.room, quiet or as_json) as progress:
            record = run(ready, requests, progress, temporary)
        record.write(temporary)
    if as_json:
        typer.echo(json.dumps(record.summary, allow_nan=False))
    else:
        show(replay_table(record), refusals(record))
        say(record.notes, quiet)
        typer.echo(f"record: {folder}")
    if verbose:
        say_settings({settings.policy: record.config})
    finish([record.summary], record.config)


@takes_run_flags("policy", "layout", "lifecycle")
def compare(
    trace: Source = None,
    policies: Annotated[
        str | None, typer.Option("--policies", help="Names with commas between; the six.")
    ] = None,
    config: Config = None,
    out: Out = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    *,
    asked: dict[str, Any],
) -> None:
    """Replay a trace under several policies and lay them side by side, with plots.

    For example: lengthwise compare chat --policies static,continuous,chunked-prefill
    """
    from lengthwise.api import read_trace, run, whole
    from lengthwise.cluster import prepare_run
    from lengthwise.console import compare_table, refusals
    from lengthwise.live import live
    from lengthwise.unused import compared
    from serving.folder import ensure_free, new_folder

    names = list(NAMED) if policies is None else [p.strip() for p in policies.split(",")]
    fields = given_fields(trace, config, asked)
    for layer in ("policy", "layout", "lifecycle"):
        fields.pop(layer, None)
    requests = read_trace(RunConfig.of(**fields))
    folder = out or new_name(Path("runs"), "compare")
    ensure_free(folder, force)
    ready = {name: prepare_run(own, requests) for name, own in compared(names, fields).items()}
    records = {}
    with new_folder(folder, force) as temporary:
        for name in names:
            inside = temporary / name.replace("/", "_").replace(":", "_")
            inside.mkdir()
            with live(name, len(requests), *ready[name].room, quiet or as_json) as progress:
                records[name] = whole(run(ready[name], requests, progress, inside))
            records[name].write(inside)
        summaries = {name: record.summary for name, record in records.items()}
        (temporary / "summary.json").write_text(json.dumps({"policies": summaries}, indent=2))
        drawn = _plots(records, temporary)
    if as_json:
        typer.echo(json.dumps({"policies": summaries}, allow_nan=False))
    else:
        show(compare_table(records), *(refusals(record) for record in records.values()))
        said = dict.fromkeys(note for record in records.values() for note in record.notes)
        say(tuple(said), quiet)
        if "running.png" not in drawn:
            level = next(iter(ready.values())).config.record
            say(
                (f"no running.png: it needs the steps, which --record {level} does not keep",),
                quiet,
            )
        typer.echo(f"report: {folder} ({', '.join(drawn)}, a record a policy)")
    if verbose:
        say_settings({name: record.config for name, record in records.items()})
    finish(list(summaries.values()), next(iter(records.values())).config)


def _plots(records: dict[str, Any], folder: Path) -> list[str]:
    """Draw what the records have the tables for; the names of the pictures."""
    from lengthwise import plots
    from lengthwise.style import save
    from serving.record import kept

    pictures: dict[str, Callable[[dict[str, Any]], Any]] = {
        "latency": plots.latency_cdfs,
        "padding": plots.padding,
    }
    if all("steps" in kept(record.config) for record in records.values()):
        pictures["running"] = plots.running
    for name, draw in pictures.items():
        save(draw(records), folder / name)
    return [f"{name}.png" for name in pictures]
