"""The command `sweep`: many runs, stored as they end, and one table of them all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthwise.commands import Force, Json, Out, Quiet, new_name, show

if TYPE_CHECKING:
    from rich.table import Table

    from lengthwise.planning.sweep import Sweep

SHOWN = {
    "output_throughput": "output\ntok/s",
    "request_goodput": "goodput\nreq/s",
    "p99_ttft_ms": "TTFT\np99 ms",
    "p99_tpot_ms": "TPOT\np99 ms",
    "padding_ratio": "padding\nratio",
    "kv_peak_fraction": "KV\npeak",
}
"""Figures of the table on the terminal; the file has all."""

MOST_ROWS = 30


def sweep(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="What to vary.")],
    out: Out = None,
    store: Annotated[
        Path, typer.Option("--store", metavar="DIR", help="Records by key, shared by sweeps.")
    ] = Path("runs/cells"),
    jobs: Annotated[int | None, typer.Option(min=1, help="Local processes; one a core.")] = None,
    dask: Annotated[str | None, typer.Option(help="Address of a Dask scheduler.")] = None,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster, or local.")] = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run every combination of settings, rates and seeds, and put the figures into one table.

    A cell that is in the store is not run again, so that a killed sweep goes on where it was.
    For example: lengthwise sweep sweep.yaml --jobs 8
    """
    from lengthwise.console import progress
    from lengthwise.planning.parallel import Where
    from lengthwise.planning.spec import SweepSpec
    from lengthwise.planning.store import Store
    from lengthwise.planning.sweep import run_sweep
    from serving.folder import ensure_free

    if sum(given is not None for given in (jobs, dask, ray)) > 1:
        raise typer.BadParameter("give one of --jobs, --dask and --ray: where the cells run")
    asked = SweepSpec.read(spec)
    folder = out or new_name(Path("runs"), "sweep")
    ensure_free(folder, force)
    where = Where(-1 if jobs is None else jobs, dask, ray)
    cells = list(asked.cells())
    with progress("sweeping", len({c.key for _, c in cells}), quiet or as_json) as bar:
        done = run_sweep(asked, Store(store.resolve()), where, bar, cells)
    counts = _save(done, folder, force, spec)
    if as_json:
        typer.echo(json.dumps(counts, allow_nan=False))
    else:
        _print(done, asked.varied, quiet)
        typer.echo(f"table: {folder}/sweep.parquet, records: {store}")
    if done.failed == counts["cells"]:
        typer.echo("no cell could be run", err=True)
        raise typer.Exit(1)


def _save(done: Sweep, folder: Path, force: bool, spec: Path) -> dict[str, Any]:
    """Write the tables; returns the counts."""
    from serving.folder import new_folder

    failed = done.table[done.table["status"] == "failed"]
    counts: dict[str, Any] = {
        "cells": done.table["key"].nunique(),
        "reused": done.reused,
        "computed": done.computed,
        "failed": done.failed,
        "errors": failed["error"].value_counts(sort=False).to_dict(),
    }
    with new_folder(folder, force) as temporary:
        done.table.to_parquet(temporary / "sweep.parquet", index=False)
        if done.intervals is not None:
            done.intervals.to_parquet(temporary / "intervals.parquet", index=False)
        (temporary / spec.name).write_bytes(spec.read_bytes())
        (temporary / "summary.json").write_text(json.dumps(counts, indent=2) + "\n")
    return counts


def _print(done: Sweep, varied: list[str], quiet: bool) -> None:
    names = [n for n in varied if done.table[n].nunique(dropna=False) > 1] or varied[:1]
    show(_table(done, names))
    if len(done.table) > MOST_ROWS and not quiet:
        typer.echo(f"note: {MOST_ROWS} of {len(done.table):,} rows; the file has all")
    failed = done.table[done.table["status"] == "failed"]
    for error, rows in failed.groupby("error", sort=False):
        first = ", ".join(f"{name} {rows.iloc[0][name]}" for name in names)
        typer.echo(f"failed: {len(rows):,} of {len(done.table):,} cells ({first}, …): {error}")
    typer.echo(
        f"{done.computed:,} run, {done.reused:,} in the store before, {done.failed:,} failed"
    )


def _table(done: Sweep, names: list[str]) -> Table:
    from rich import box
    from rich.table import Table

    from lengthwise.console import number

    rows = done.table[done.table["status"] == "done"].head(MOST_ROWS)
    shown = {n: h for n, h in SHOWN.items() if n in rows and rows[n].notna().any()}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    for name in names:
        table.add_column(name, vertical="bottom")
    for heading in shown.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows.to_dict("records"):
        figures = [number(None if row[n] != row[n] else row[n]) for n in shown]
        table.add_row(*(str(row[name]) for name in names), *figures)
    return table
