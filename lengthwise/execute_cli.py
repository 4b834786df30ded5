"""The command `execute`: a trace under one policy, on a real model and a real clock."""

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
from lengthwise.on_model import NO_USE, SIMULATED, How, run_on_model
from policies.compose import PolicyChoiceError

Device = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="fp32, bf16 or fp16; fp32 on a CPU, else bf16.")
]
Attention = Annotated[
    str | None,
    typer.Option("--attention", help="flash-attn, varlen or sdpa; the best that works."),
]
Weights = Annotated[
    Path | None, typer.Option("--weights", help="A Hugging Face folder; random weights if not.")
]
Offline = Annotated[bool, typer.Option("--offline", help="All requests arrive at once.")]
Scale = Annotated[
    str | None,
    typer.Option("--scale-lengths", help="All lengths times X; auto: so that the longest fits."),
]


@takes_run_flags(*SIMULATED)
def execute(
    trace: Source = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    attention: Attention = None,
    weights: Weights = None,
    offline: Offline = False,
    scale_lengths: Scale = None,
    config: Config = None,
    out: Out = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    *,
    asked: dict[str, Any],
) -> None:
    """Run a trace under one policy on a real model, with arrivals at their real times.

    For example: lengthwise execute chat --limit 50 --scale-lengths auto --model tiny
    """
    from lengthwise.api import read_trace
    from lengthwise.console import refusals, replay_table
    from lengthwise.live import live
    from policies.compose import Settings
    from serving.folder import ensure_free

    settings = RunConfig.of(**_measured(given_fields(trace, config, asked), config))
    folder = out or new_name(Path("runs"), f"{settings.policy}-measured")
    ensure_free(folder, force)
    requests = read_trace(settings)
    how = How(device, dtype, attention, weights, offline, scale_lengths)
    seats = settings.max_num_seqs or Settings.max_num_seqs
    with live("executing", len(requests), seats, quiet=quiet or as_json) as progress:
        record = run_on_model(settings, requests, how, progress)
    record.save(folder, force)
    if as_json:
        typer.echo(json.dumps(record.summary, allow_nan=False))
    else:
        show(replay_table(record), refusals(record))
        say(record.notes, quiet)
        c = record.config
        typer.echo(
            f"measured on {c['device']}, {c['dtype']}, {c['attention']} attention, "
            f"{c['kv_blocks']} KV blocks ({c['kv_blocks_from']})"
        )
        typer.echo(f"record: {folder}")
    if verbose:
        say_settings({settings.policy: record.config})
    finish([record.summary], record.config)


def _measured(fields: dict[str, Any], config: Path | None) -> dict[str, Any]:
    """The fields without the simulator's, which a simulated run's config.json has too.

    Raises:
        PolicyChoiceError: one of the simulator's fields is not at its default.
    """
    for name in SIMULATED:
        if name in fields and fields.pop(name) != RunConfig.model_fields[name].default:
            raise PolicyChoiceError(f"--config {config}: {name}: {NO_USE}")
    return fields
