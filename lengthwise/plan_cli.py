"""The command `plan`: from a trace and an SLO to GPUs and settings."""

from __future__ import annotations

import json
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
    given_fields,
    new_name,
    show,
)
from lengthwise.config import RunConfig
from lengthwise.flags import takes_run_flags


@takes_run_flags("replicas", "rate_scale", "jump", "record")
def plan(
    trace: Source = None,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", metavar="NAME=V,V,…", help="Values of a flag to choose from."),
    ] = None,
    gpu_hour_price: Annotated[
        str | None, typer.Option(metavar="$", help="2.5, or h100=2.5,l40s=0.9: cost decides.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Of the highest rate.")
    ] = 0.02,
    screen_requests: Annotated[
        int,
        typer.Option(min=2, help="Busiest requests in a row that all settings are compared on."),
    ] = 3000,
    rate: Annotated[
        float | None, typer.Option(min=0.0, help="Requests/s to serve; the trace's own.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Local processes; one a core.")] = None,
    config: Config = None,
    out: Out = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
    *,
    asked: dict[str, Any],
) -> None:
    """Find the settings, the rate one replica sustains, and the fewest replicas, for an SLO.

    For example: lengthwise plan trace.csv --slo ttft_p99_ms=1000,tpot_p99_ms=50
    --vary hardware=h100,l40s --vary max-num-seqs=64,128,256
    """
    from lengthwise.api import read_trace
    from lengthwise.planning.front import picture, table_of
    from lengthwise.planning.plan import Asked, make_plan, scale_of
    from lengthwise.planning.settings import candidates, parse_prices, parse_vary
    from lengthwise.planning.told import answer_of, lines_of, pareto_table
    from lengthwise.style import save
    from serving.folder import ensure_free, new_folder

    base = RunConfig.of(**given_fields(trace, config, asked))
    folder = out or new_name(Path("runs"), "plan")
    ensure_free(folder, force)
    if base.slo is None:
        raise typer.BadParameter("--slo says what to plan for, e.g. ttft_p99_ms=500,tpot_p99_ms=50")
    if base.record != "full":
        raise typer.BadParameter(f"record {base.record} in --config: a plan needs full records")
    own_scale, base = base.rate_scale, base.model_copy(update={"rate_scale": 1.0})
    requests, every = read_trace(base), candidates(base, parse_vary(vary or []))
    hardware = list(dict.fromkeys(candidate.hardware for candidate in every))
    question = Asked(
        requests,
        every,
        own_scale if rate is None else scale_of(requests, rate),
        base.router,
        tolerance,
        screen_requests,
        None if gpu_hour_price is None else parse_prices(gpu_hour_price, hardware),
        -1 if jobs is None else jobs,
    )
    with new_folder(folder, force) as temporary:
        told = _teller(quiet or as_json)
        found = make_plan(question, temporary, told)
        rows = table_of(found)
        rows.to_parquet(temporary / "settings.parquet", index=False)
        save(picture(found, rows), temporary / "front")
        answer = answer_of(found)
        (temporary / "summary.json").write_text(
            json.dumps(answer, indent=2, allow_nan=False) + "\n", encoding="utf-8"
        )
    if as_json:
        typer.echo(json.dumps(answer, allow_nan=False))
        return
    for line in lines_of(found):
        typer.echo(line)
    show(pareto_table(found, rows))
    typer.echo(f"plan: {folder} (settings.parquet, front.png, the records behind the answers)")


def _teller(quiet: bool) -> Any:
    """Says what is going on, on the terminal's error stream."""
    return (lambda what: None) if quiet else (lambda what: typer.echo(f"… {what}", err=True))
