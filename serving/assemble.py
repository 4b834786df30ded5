"""Turns what the engines wrote down into the tables of a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving.record import make_table
from serving.recorder import ADMIT, FINISH, FIRST, PREEMPT, Recorder
from serving.tables import EVENTS, REQUESTS, STEPS
from traces.trace import Trace

Estimate = Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float64]]
"""Figures a step from the step table's columns, shape [steps]: FLOPs, or bytes moved."""


def assemble(
    trace: Trace,
    recorders: Sequence[Recorder],
    flops: Estimate | Sequence[Estimate | None] | None = None,
    bytes_moved: Estimate | Sequence[Estimate | None] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The request, step and event tables of one run.

    Args:
        trace: what was asked for; its rows are the requests.
        recorders: one a replica, in order.
        flops: useful arithmetic of the model, where there is a model; one a replica where they
            differ.
        bytes_moved: weights and KV moved, likewise.
    """
    steps, events = [], []
    arithmetic, moved = (
        made if isinstance(made, Sequence) else [made] * len(recorders)
        for made in (flops, bytes_moved)
    )
    requests = _blank_requests(trace)
    for replica, recorder in enumerate(recorders):
        columns: dict[str, NDArray[Any]] = dict(recorder.step_columns())
        count = len(columns["step"])
        columns["replica"] = np.full(count, replica)
        for name, estimate in (("flops", arithmetic[replica]), ("bytes", moved[replica])):
            columns[name] = np.full(count, np.nan) if estimate is None else estimate(columns)
        steps.append(columns)
        rows = recorder.event_rows()
        events.append(rows)
        _fill_requests(requests, recorder, rows, columns, replica)
    _derive(requests)
    merged = steps[0]
    if len(steps) > 1:
        merged = {name: np.concatenate([c[name] for c in steps]) for name in STEPS}
        order = np.lexsort((merged["replica"], merged["start_s"]))
        merged = {name: column[order] for name, column in merged.items()}
    lines = np.concatenate(events) if len(events) > 1 else events[0]
    event_columns = {
        "step": lines[:, 0],
        "request": lines[:, 1],
        "kind": lines[:, 2],
        "tokens": lines[:, 3],
        "row": lines[:, 4],
    }
    return (
        make_table(requests, REQUESTS),
        make_table(merged, STEPS),
        make_table(event_columns, EVENTS),
    )


def _blank_requests(trace: Trace) -> dict[str, NDArray[Any]]:
    count = len(trace)
    times = ("scheduled_s", "first_token_s", "finished_s", "grouping_wait_s")
    return {
        "request": np.arange(count),
        "arrival_s": trace.arrival_s,
        "prompt_tokens": trace.prompt_tokens,
        "output_tokens": trace.output_tokens,
        **{name: np.full(count, np.nan) for name in times},
        "preemptions": np.zeros(count, np.int64),
        "status": np.full(count, "unfinished", object),
        "reason": np.full(count, None, object),
        "replica": np.full(count, -1, np.int64),
    }


def _fill_requests(
    requests: dict[str, NDArray[Any]],
    recorder: Recorder,
    events: NDArray[np.int64],
    steps: Mapping[str, NDArray[Any]],
    replica: int,
) -> None:
    """What this replica did to each request: times are those of the steps named by its events."""
    step, request, kind = events[:, 0], events[:, 1], events[:, 2]
    start, end = steps["start_s"], steps["end_s"]
    # written back to front, so that the first of several events of a request stands
    for column, wanted, times in (
        ("scheduled_s", ADMIT, start),
        ("first_token_s", FIRST, end),
        ("finished_s", FINISH, end),
    ):
        chosen = kind == wanted
        requests[column][request[chosen][::-1]] = times[step[chosen]][::-1]
    np.add.at(requests["preemptions"], request[kind == PREEMPT], 1)
    requests["replica"][request[kind == ADMIT]] = replica
    requests["status"][request[kind == FINISH]] = "finished"
    scheduled = request[kind == ADMIT]
    requests["grouping_wait_s"][scheduled] = 0.0
    for index, seconds in recorder.waits.items():
        requests["grouping_wait_s"][index] = seconds
    for refused, reason in recorder.refused:
        requests["status"][refused.index] = "refused"
        requests["reason"][refused.index] = reason


def _derive(requests: dict[str, NDArray[Any]]) -> None:
    """The latencies of the design's section 1, s; NaN where undefined."""
    arrival, first = requests["arrival_s"], requests["first_token_s"]
    finished, outputs = requests["finished_s"], requests["output_tokens"]
    requests["ttft_s"] = first - arrival
    requests["e2e_s"] = finished - arrival
    requests["queue_s"] = requests["scheduled_s"] - arrival
    gaps = np.where(outputs > 1, outputs - 1, np.nan)
    requests["tpot_s"] = (finished - first) / gaps
