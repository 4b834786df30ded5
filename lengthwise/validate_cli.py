"""The command `validate`: a measured run beside its prediction, and how far apart they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lengthwise.commands import Config, Force, Json, Quiet, Source, new_name, say, show
from lengthwise.config import TRACE, RunConfig, panel_of, read_config
from lengthwise.execute_cli import Attention, Device, Scale, Weights
from lengthwise.flags import takes_run_flags
from lengthwise.on_model import SIMULATED, How

if TYPE_CHECKING:
    from lengthwise.validate.measured import Measured
    from lengthwise.validate.report import Report

CLUSTER = ("replicas", "router", "groups")
"""Options of several engines: one is compared."""

MeasuredDir = Annotated[
    Path | None,
    typer.Option(
        "--measured",
        metavar="DIR",
        help="A run measured elsewhere: requests.csv and config.json, or a record's folder.",
    ),
]
Bench = Annotated[
    Path | None,
    typer.Option(
        "--vllm-bench",
        metavar="FILE",
        help="What vllm bench serve --save-result --save-detailed wrote.",
    ),
]
FitOverhead = Annotated[
    Path | None,
    typer.Option(
        "--fit-overhead", metavar="RUN", help="Fit --overhead-us-per-layer on this measured run."
    ),
]
Load = Annotated[
    float | None,
    typer.Option("--load", help="Set TRACE's rate: predicted busy time is this share of the span."),
]
Warmup = Annotated[
    int, typer.Option("--warmup", min=0, help="Compare the first so many requests apart.")
]
OutDir = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder for report and plots; runs/… if not given."),
]


@takes_run_flags(*CLUSTER, "record")
def validate(
    trace: Source = None,
    measured: MeasuredDir = None,
    vllm_bench: Bench = None,
    fit_overhead: FitOverhead = None,
    load: Load = None,
    scale_lengths: Scale = None,
    warmup: Warmup = 0,
    device: Device = "cpu",
    attention: Attention = None,
    weights: Weights = None,
    config: Config = None,
    out: OutDir = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
    *,
    asked: dict[str, Any],
) -> None:
    """Simulate a measured run and say how far the prediction is off.

    TRACE is profiled, simulated and run on this machine; --measured and --vllm-bench are runs
    from elsewhere. For example: lengthwise validate --measured DIR --cost cost.json
    --fit-overhead DIR
    """
    from lengthwise.validate.overhead import overhead_of
    from lengthwise.validate.predict import configured
    from lengthwise.validate.report import validate as compared
    from serving.folder import ensure_free, new_folder

    if sum(source is not None for source in (trace, measured, vllm_bench)) != 1:
        raise typer.BadParameter("give one of TRACE, --measured DIR and --vllm-bench FILE")
    fields = ({} if config is None else read_config(config)) | asked
    for key in CLUSTER:
        if fields.get(key) not in (None, 1):
            raise typer.BadParameter(f"--config {config}: {key}: only one engine can be compared")
    how = How(device, fields.get("dtype"), attention, weights, False, scale_lengths)
    name = trace or (measured or vllm_bench or Path("run")).name
    folder = out or new_name(Path("runs"), f"validate-{name}")
    ensure_free(folder, force)
    with new_folder(folder, force) as temporary:
        spread = None
        if trace is None:
            _refuse(fields, how, load)
            found = _read(measured, vllm_bench)
        else:
            found, fields, spread = _run_here(trace, fields, how, load, temporary, quiet or as_json)
        settings = configured(found, fields)
        fitted = None
        if fit_overhead is not None:
            same = measured is not None and fit_overhead.resolve() == measured.resolve()
            run = found if same else _read(fit_overhead, None)
            fitted = overhead_of(run, configured(run, fields), warmup if same else 0)
        report = compared(found, settings, fitted, warmup, settings.seed)
        _save(report, spread, temporary)
    _print(report, spread, folder, as_json, quiet)


def _read(folder: Path | None, bench: Path | None) -> Measured:
    from lengthwise.validate.bench import read_bench
    from lengthwise.validate.folder import read_folder
    from lengthwise.validate.of_record import of_record
    from serving.folder import MARK
    from serving.record import Record

    if bench is not None:
        return read_bench(bench)
    assert folder is not None
    if (folder / MARK).is_file():
        return of_record(Record.load(folder), folder.resolve().name)
    return read_folder(folder)


def _refuse(fields: dict[str, Any], how: How, load: float | None) -> None:
    """Flags that only say how TRACE is read and run here."""
    panels = {name: panel_of(field) for name, field in RunConfig.model_fields.items()}
    given = [name for name in fields if panels.get(name) == TRACE and name != "seed"]
    given += ["load"] * (load is not None) + ["scale-lengths"] * (how.scale_lengths is not None)
    given += ["attention"] * (how.attention is not None) + ["weights"] * (how.weights is not None)
    if given:
        flag = given[0].replace("_", "-")
        raise typer.BadParameter(
            f"--{flag} is for a TRACE that is run here, not for a measured run"
        )


def _run_here(
    trace: str,
    fields: dict[str, Any],
    how: How,
    load: float | None,
    folder: Path,
    silent: bool,
) -> tuple[Measured, dict[str, Any], float | None]:
    """Profile if no cost is given, then run: what was measured, the simulation's fields, spread."""
    from lengthwise.api import read_trace
    from lengthwise.console import progress
    from lengthwise.live import live
    from lengthwise.on_model import fit_lengths
    from lengthwise.prepare import prepare
    from lengthwise.validate.here import ROUNDS, Profiled, profiling, run_here
    from policies.compose import Settings
    from sim.models import load_model

    simulated = {k: v for k, v in fields.items() if k in SIMULATED and k != "dtype"}
    config = RunConfig.of(**{k: v for k, v in fields.items() if k not in SIMULATED}, trace=trace)
    model = config.model or ("tiny" if how.weights is None else str(how.weights))
    config = config.model_copy(update={"model": model})
    limit = config.max_model_len or load_model(model).max_positions
    requests, _ = fit_lengths(read_trace(config), how.scale_lengths, limit)
    made, spread = None, None
    if "cost" not in simulated:
        made = profiling(folder, model, how, config.block_size, requests.longest)
        made.rounds(ROUNDS, lambda total: progress("profiling", total, silent))
        layout, cost = prepare(config, requests).point.layout, folder / "cost.json"
        Profiled(made.out, made.write()).cost_of(layout, cost)
        simulated["cost"] = str(cost)
    seats = config.max_num_seqs or Settings.max_num_seqs
    with live("executing", len(requests), seats, quiet=silent) as told:
        found = run_here(requests, config, how, simulated, load, told)
    if made is not None:
        made.rounds(2 * ROUNDS, lambda total: progress("profiling again", total, silent))
        whole = Profiled(made.out, made.finish())
        whole.cost_of(layout, cost)
        spread = whole.spread
    return found, simulated, spread


def _save(report: Report, spread: float | None, folder: Path) -> None:
    from lengthwise.style import save
    from lengthwise.validate.plots import FIGURES_OF
    from lengthwise.validate.report import document, save_records
    from serving.record import dump_json

    dump_json(document(report) | {"profile_spread_pct": _pct(spread)}, folder / "summary.json")
    save_records(report, folder)
    for name, draw in FIGURES_OF.items():
        save(draw(report), folder / name)


def _print(report: Report, spread: float | None, folder: Path, as_json: bool, quiet: bool) -> None:
    from lengthwise.validate.report import document
    from lengthwise.validate.tables import tables

    if as_json:
        data = document(report) | {"profile_spread_pct": _pct(spread)}
        typer.echo(json.dumps(data, allow_nan=False))
        return
    show(*tables(report))
    if spread is not None:
        typer.echo(f"Three repeats of a profiled step lie {100 * spread:.1f}% apart")
    say(report.notes, quiet)
    typer.echo(
        f"report: {folder} (summary.json, agreement.png, distributions.png, error_by_depth.png)"
    )


def _pct(share: float | None) -> float | None:
    return None if share is None else 100 * share
