"""A measured record as a measured run: what `lengthwise execute` left behind."""

from __future__ import annotations

from typing import Any

import numpy as np

from lengthwise.api import read_trace
from lengthwise.config import RunConfig
from lengthwise.validate.measured import COLUMNS, Measured, MeasuredError
from serving.record import Record
from sim.hardware import hardware_called
from traces.errors import TraceError
from traces.trace import Trace

FACTS = ("max_model_len", "max_num_seqs", "block_size", "cuda_graphs")
"""Facts of a record that are settings of a run."""


def of_record(record: Record, name: str, trace: Trace | None = None) -> Measured:
    """The run that a record holds.

    Args:
        record: of one engine.
        name: what to call it.
        trace: what it was run with; None: its request table says so, and where hashes or
            priorities matter, the trace that its configuration names is read again.

    Raises:
        MeasuredError: a simulated record, several replicas, or a trace that is no longer there.
    """
    config = record.config
    if config.get("backend") != "measured":
        raise MeasuredError(
            f"{name}: a record of a {config.get('backend')} run; give one of lengthwise execute"
        )
    if len(set(record.steps["replica"])) > 1:
        raise MeasuredError(f"{name}: the record holds several replicas; one can be compared")
    if config.get("interrupted"):
        raise MeasuredError(f"{name}: the run was interrupted; run it again to the end")
    settings: dict[str, Any] = {k: v for k, v in config["run"].items() if k != "trace"}
    settings |= {key: config[key] for key in FACTS if config.get(key) is not None}
    settings["dtype"] = config["dtype"]
    blocks = config.get("kv_blocks")
    if blocks is not None:
        settings["num_gpu_blocks_override"] = int(blocks) + 1  # the null block
    place = hardware_called(str(config.get("device") or ""))
    if place is not None:
        settings["hardware"] = place
    return Measured(
        name,
        trace or _trace(record, name),
        record.requests[list(COLUMNS)],
        settings,
        record.latencies["itl"],
        record,
        notes=record.notes,
    )


def _trace(record: Record, name: str) -> Trace:
    table = record.requests
    trace = Trace(
        table["arrival_s"].to_numpy(np.float64),
        table["prompt_tokens"].to_numpy(np.int64),
        table["output_tokens"].to_numpy(np.int64),
        name=name,
    )
    run = record.config["run"]
    if not run.get("enable_prefix_caching") and run.get("order") != "priority":
        return trace
    if run.get("trace") is None:
        raise MeasuredError(
            f"{name}: its prefixes or priorities matter, and the record does not name its trace"
        )
    try:
        read = read_trace(RunConfig.of(**run))
    except TraceError as error:
        raise MeasuredError(f"{name}: its prefixes or priorities matter: {error}") from None
    same = len(read) == len(trace) and all(
        np.array_equal(getattr(read, c), getattr(trace, c))
        for c in ("prompt_tokens", "output_tokens")
    )
    if not same:
        raise MeasuredError(f"{name}: {run['trace']} is no longer the trace that was run")
    return Trace(
        trace.arrival_s,
        trace.prompt_tokens,
        trace.output_tokens,
        read.priority,
        read.hashes,
        name=name,
    )
