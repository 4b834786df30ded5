"""The command `calibrate`: from measured steps or kernels to coefficients, with their errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from sim.fit_kernels import KernelFits
    from sim.fitted import Calibration, Provenance
    from sim.step_rows import StepRows


def calibrate(
    rows: Annotated[
        Path | None,
        typer.Argument(
            metavar="ROWS",
            help="Measured steps: a CSV or Parquet file, or a record's folder.",
            show_default=False,
        ),
    ] = None,
    uneven: Annotated[
        Path | None,
        typer.Option(
            "--uneven",
            help="Beside ROWS: attention of one layer where decodes differ; needs the model.",
            show_default=False,
        ),
    ] = None,
    uneven_forwards: Annotated[
        int | None,
        typer.Option(
            "--uneven-forwards",
            min=1,
            help="Forward passes that a time of --uneven is the sum of.  [default: 1]",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the coefficients go.", show_default=False)
    ] = None,
    ops: Annotated[
        Path | None,
        typer.Option(
            "--ops",
            help="Instead: a folder of measured kernels, to fit what share of each GPU they reach.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model that was measured.", show_default=False)
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="The machine, in your words.", show_default=False)
    ] = None,
    tp: Annotated[int | None, typer.Option(help="GPUs a step ran on.", show_default=False)] = None,
    dtype: Annotated[
        str | None, typer.Option(help="The weights' dtype.", show_default=False)
    ] = None,
    versions: Annotated[
        str | None, typer.Option(help="Engine and driver versions.", show_default=False)
    ] = None,
    date: Annotated[
        str | None, typer.Option(help="When it was measured.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """Fit a cost model to measured steps (ROWS), or efficiencies to measured kernels (--ops).

    What is known of ROWS is read from the JSON file beside it; flags come first. Give the file
    that --out writes to `replay --cost`.

    For example: lengthwise calibrate profile.parquet --out cost.json
    """
    if (rows is None) == (ops is None):
        raise typer.BadParameter("give either ROWS or --ops DIR")
    if uneven is not None and rows is None:
        raise typer.BadParameter("--uneven goes with ROWS, not with --ops")
    if uneven_forwards is not None and uneven is None:
        raise typer.BadParameter("--uneven-forwards says what the times of --uneven are; give both")
    if out is not None and out.exists() and not force:
        raise typer.BadParameter(f"--out {out} exists; give --force to replace it")
    try:
        if ops is not None:
            _kernels(ops, out, as_json)
        elif rows is not None:
            given = {
                "model": model,
                "hardware": hardware,
                "tp": tp,
                "dtype": dtype,
                "versions": versions,
                "date": date,
            }
            _steps(rows, (uneven, uneven_forwards or 1), out, given, as_json)
    except ValueError as error:  # every error of a user's making is one
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None


def _steps(
    path: Path,
    uneven: tuple[Path | None, int],
    out: Path | None,
    given: dict[str, Any],
    as_json: bool,
) -> None:
    from lengthwise.console import make_console
    from sim.fit_steps import calibrate as fit_steps
    from sim.fit_steps import with_uneven
    from sim.step_rows import read_rows
    from sim.uneven_rows import read_uneven

    if out is None:
        raise typer.BadParameter("ROWS needs --out FILE")
    rows = read_rows(path)
    made = _provenance(rows, given)
    table, forwards = uneven
    if table is not None:
        if made.layers is None:
            raise typer.BadParameter("--uneven is of one layer: say how many there are by --model")
        rows = with_uneven(rows, read_uneven(table, forwards), made.layers)
        made = replace(made, rows=len(rows), source=rows.source)
    found = fit_steps(rows, made)
    found.save(out)
    if as_json:
        typer.echo(json.dumps(_steps_summary(found, rows, out)))
        return
    console = make_console()
    console.print(f"{rows.source}: error on held-out steps, {found.error.folds} folds")
    if table is not None:
        times = "one forward pass" if forwards == 1 else f"{forwards} forward passes"
        console.print(f"{rows.made:,} steps were made of {table.name}, its times taken as {times}")
    console.print(_steps_table(found, rows))
    spread = rows.spread()
    repeats = "" if spread is None else f"; three repeats of a step lie {100 * spread:.1f}% apart"
    error = found.error
    console.print(f"median {100 * error.median:.2f}%, p90 {100 * error.p90:.2f}%{repeats}")
    console.print(f"Written to {out}")


def _provenance(rows: StepRows, given: dict[str, Any]) -> Provenance:
    """What the flags and the file beside the rows say; the model's layers come from its table."""
    from sim.fitted import Provenance, own_version
    from sim.models import load_model

    known = {k: rows.facts.get(k) if v is None else v for k, v in given.items()}
    if isinstance(known["versions"], dict):
        known["versions"] = ", ".join(f"{k} {v}" for k, v in known["versions"].items())
    shape = None if known["model"] is None else load_model(known["model"])
    return Provenance(
        rows=len(rows),
        source=rows.source,
        model=None if shape is None else shape.name,
        layers=None if shape is None else shape.layers,
        hidden=None if shape is None else shape.hidden,
        hardware=known["hardware"],
        tp=known["tp"] or 1,
        dtype=known["dtype"],
        versions=known["versions"],
        date=known["date"],
        lengthwise=own_version(),
    )


def _steps_summary(found: Calibration, rows: StepRows, out: Path) -> dict[str, Any]:
    spread = rows.spread()
    error = found.error
    return {
        "out": str(out),
        "rows": len(rows),
        "folds": error.folds,
        "error_pct": {
            "mean": 100 * error.mean,
            "median": 100 * error.median,
            "p90": 100 * error.p90,
            **{region: 100 * value for region, value in error.regions.items()},
        },
        "spread_pct": None if spread is None else 100 * spread,
        "terms_s": found.terms.to_dict(),
    }


def _steps_table(found: Calibration, rows: StepRows) -> Table:
    """How far held-out steps are from their prediction, by what the step holds."""
    from rich.table import Table

    from sim.fitted import regions

    error, measured = found.error, slice(0, len(rows) - rows.made)
    members = {name: inside[measured] for name, inside in regions(rows.columns).items()}
    table = Table()
    table.add_column("steps")
    for heading in ("rows", "mean error %"):
        table.add_column(heading, justify="right")
    for region, value in error.regions.items():
        table.add_row(region, f"{int(members[region].sum()):,}", f"{100 * value:.2f}")
    table.add_row("all", f"{measured.stop:,}", f"{100 * error.mean:.2f}")
    return table


def _kernels(folder: Path, out: Path | None, as_json: bool) -> None:
    from lengthwise.console import make_console
    from sim.fit_kernels import fit_ops

    found = fit_ops(folder)
    if out is not None:
        out.write_text(found.to_json(), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps({"kernels": _kernel_scores(found), "out": out and str(out)}))
        return
    console = make_console()
    console.print("Kernel times against measurement, on rows left out of the fit")
    console.print(_kernels_table(found))
    if out is not None:
        console.print(f"Written to {out}")


def _kernel_scores(found: KernelFits) -> list[dict[str, Any]]:
    return [
        {
            "gpu": s.gpu,
            "op": s.op,
            "rows": s.rows,
            "error_pct": None if s.error is None else 100 * s.error,
            "median_pct": None if s.median is None else 100 * s.median,
            "note": s.note,
        }
        for s in found.scores
    ]


def _kernels_table(found: KernelFits) -> Table:
    """The error of every GPU and operation."""
    from rich.table import Table

    table = Table()
    table.add_column("GPU")
    table.add_column("operation")
    for heading in ("rows", "mean error %", "median %"):
        table.add_column(heading, justify="right")
    table.add_column("note")
    for s in found.scores:
        figures = ("–" if v is None else f"{100 * v:.1f}" for v in (s.error, s.median))
        table.add_row(s.gpu, s.op, f"{s.rows:,}", *figures, s.note)
    return table
