"""The Python API's other half: a trace under a policy on a real model and a real clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.api import describe, given_trace, versions
from lengthwise.config import RunConfig
from lengthwise.glimpse import Progress, looked_at
from lengthwise.prepare import Prepared, prepare, requests_of
from policies.compose import PolicyChoiceError
from policies.sglang.limits import SPARE_TOKENS
from serving.assemble import assemble
from serving.record import Record
from serving.recorder import Recorder
from sim.models import load_model
from sim.useful import useful_bytes, useful_flops
from traces import Trace
from traces.edit import scale_lengths as scaled

SIMULATED = (
    "like",
    "cost",
    "step_ms",
    "hardware",
    "tp",
    "dtype",
    "kv_dtype",
    "overhead_us_per_layer",
    "allreduce_gbps",
    "allreduce_us",
    "mem_fraction_static",
    "cuda_graphs",
    "jump",
    "replicas",
    "router",
    "groups",
)
"""Options of a simulated run that say nothing about a measured one."""

NO_USE = "it is the simulator's, a measured run has no use for it; leave it out"


@dataclass(frozen=True)
class How:
    """What a measured run has besides its configuration (see `execute`)."""

    device: str = "cpu"
    dtype: str | None = None
    attention: str | None = None
    weights: Path | None = None
    offline: bool = False
    scale_lengths: str | None = None


def execute(
    trace: Trace | str | Path,
    policy: str = "chunked-prefill",
    progress: Progress | None = None,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    attention: str | None = None,
    weights: Path | None = None,
    offline: bool = False,
    scale_lengths: str | None = None,
    **options: Any,
) -> Record:
    """Run a trace under a policy on a real model.

    Args:
        trace: a trace, a file, or the name of a built-in workload.
        policy: by name, or a user's own (`file.py:MyPolicy`).
        progress: told a few times a second how the run stands, from another thread.
        device: `cpu` or `cuda`.
        dtype: fp32, bf16 or fp16; fp32 on a CPU and bf16 on a GPU if not given.
        attention: a backend by name; the best that works if not given.
        weights: a Hugging Face folder; random weights if not given.
        offline: all requests arrive at once.
        scale_lengths: a factor, or `auto`: what makes the longest request fit the model.
        options: the flags of `lengthwise execute`, with underscores.

    Returns:
        The record, as `replay` returns it, with `backend` "measured".

    Raises:
        ValueError: the user's mistake, with the flag, what was found and what to do.
    """
    for name in SIMULATED:
        if name in options:
            raise PolicyChoiceError(f"--{name.replace('_', '-')}: {NO_USE}")
    config = RunConfig.of(policy=policy, **options)
    requests, config = given_trace(trace, config)
    how = How(device, dtype, attention, weights, offline, scale_lengths)
    return run_on_model(config, requests, how, progress)


def run_on_model(
    config: RunConfig, trace: Trace, how: How, progress: Progress | None = None
) -> Record:
    """Run a trace that is already read (see `execute`)."""
    from executor.execute import Engine, Machine, measure

    model = config.model or ("tiny" if how.weights is None else str(how.weights))
    config = config.model_copy(update={"model": model})
    shape = load_model(model)
    limit = config.max_model_len or shape.max_positions
    spare = SPARE_TOKENS if config.policy == "sglang" else 0  # SGLang refuses what just fits
    trace, factor = fit_lengths(trace, how.scale_lengths, limit - spare)
    if how.offline:
        trace = replace(trace, arrival_s=np.zeros(len(trace))).noted("all requests arrive at once")
    ready = prepare(config, trace)  # the user's mistakes show before a model is built
    if ready.point.lifecycle == "sglang" and ready.settings.enable_prefix_caching:
        raise PolicyChoiceError(
            "--enable-prefix-caching: the radix cache is simulated only, the model's pages are not "
            "reused by it; leave it out to execute sglang"
        )
    machine = Machine(how.device, how.dtype, how.attention, how.weights, config.seed)
    engine = Engine(shape, machine, config.block_size)
    if engine.block_size != ready.settings.block_size:
        config = config.model_copy(update={"block_size": engine.block_size})
        ready = prepare(config, trace)
    recorder = Recorder()
    with looked_at([recorder], len(trace), progress):
        found = measure(
            engine,
            trace,
            requests_of(trace, engine.block_size, ready.settings.enable_prefix_caching),
            ready.point,
            ready.settings,
            config.num_gpu_blocks_override,
            config.gpu_memory_utilization,
            recorder,
        )
    facts = {
        **engine.facts(),
        **found.facts,
        "block_size": engine.block_size,
        "offline": how.offline,
        "length_factor": factor,
    }
    if found.interrupted:
        facts["interrupted"] = True
    return _record(ready, trace, found.recorder, facts)


def _record(ready: Prepared, trace: Trace, recorder: Recorder, facts: dict[str, Any]) -> Record:
    model, dtype = load_model(str(ready.config.model)), facts["dtype"]
    moved = partial(useful_bytes, model, dtype, dtype)
    tables = assemble(trace, [recorder], partial(useful_flops, model), moved)
    config = describe(ready) | {
        "backend": "measured",
        "hardware": facts["device"],
        "peak_flops": None,
        "peak_bytes_per_s": None,
        **facts,
        "versions": versions("lengthwise", "numpy", "torch"),
    }
    for name in SIMULATED:
        config["run"].pop(name, None)
    return Record(config, *tables, notes=ready.notes)


def fit_lengths(trace: Trace, asked: str | None, limit: int) -> tuple[Trace, float]:
    """The trace with its lengths scaled as asked, and the factor.

    Args:
        trace: any.
        asked: a factor; `auto`: the one that makes the longest request fit; None: as they are.
        limit: most tokens of a prompt with its output.

    Raises:
        PolicyChoiceError: neither a number nor `auto`.
        TraceError: a factor that is not positive and finite.
    """
    if asked is None:
        return trace, 1.0
    if asked == "auto":
        # prompt and output are rounded apart: one token to spare
        factor = 1.0 if trace.longest <= limit else (limit - 1) / trace.longest
    else:
        try:
            factor = float(asked)
        except ValueError:
            raise PolicyChoiceError(f"--scale-lengths {asked}: give a factor, or auto") from None
    return (trace if factor == 1 else scaled(trace, factor, factor)), factor
