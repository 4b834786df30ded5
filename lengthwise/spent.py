"""Where requests spent their time: queued, in prefill, decoding, or preempted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from lengthwise.stays import Replica, Stay, replica
from serving.record import Record


class Phase(NamedTuple):
    """A stretch of one request's life."""

    what: str
    """`queued`, `prefill`, `decode` or `preempted`."""
    begin: float
    """Seconds."""
    end: float
    """Seconds."""


PHASES = ("queued", "prefill", "decode", "preempted")


def phases(stays: Sequence[Stay], arrival: float, engine: Replica) -> list[Phase]:
    """The life of one request, from its arrival to the end of its last stay, without gaps.

    Prefill reaches from the start of the step that admits it to the end of the step that completes
    its known tokens; after a preemption it happens again.

    Args:
        stays: its stays in a seat, in order.
        arrival: when it arrived, s.
        engine: its replica.
    """
    start, end = engine.start, engine.end
    life: list[Phase] = []
    for before, stay in pairwise([None, *stays]):
        if stay is None:
            continue
        left = arrival if before is None else float(end[before.end])
        admitted = float(start[stay.begin])
        life.append(Phase("queued" if before is None else "preempted", left, admitted))
        last = float(end[stay.end])
        ready = last if stay.first is None else min(float(end[stay.first]), last)
        life += [Phase("prefill", admitted, ready), Phase("decode", ready, last)]
    return [phase for phase in life if phase.end > phase.begin]


def spent(record: Record, requests: Sequence[int]) -> pd.DataFrame:
    """Seconds that each of `requests` spent in each phase, a row a request, in that order.

    Args:
        record: the run.
        requests: rows of the trace; one that never ran has zeros.

    Returns:
        Columns `request` and `{phase}_s` for each of `PHASES`.
    """
    rows = {request: dict.fromkeys(PHASES, 0.0) for request in requests}
    chosen = record.requests[record.requests["request"].isin(list(requests))]
    arrival = dict(zip(chosen["request"], chosen["arrival_s"], strict=True))
    for number in sorted(set(chosen["replica"]) - {-1}):
        engine = replica(record, int(number), list(requests))
        for request, stays in engine.by_request().items():
            for phase in phases(stays, arrival[request], engine):
                rows[request][phase.what] += phase.end - phase.begin
    return pd.DataFrame(
        {
            "request": list(requests),
            **{f"{name}_s": [rows[request][name] for request in requests] for name in PHASES},
        }
    )
