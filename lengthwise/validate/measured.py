"""A run that was measured, whoever measured it: its requests, its settings, and its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving.distribution import Distribution
from serving.record import Record
from traces.trace import Trace

COLUMNS = ("request", "arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s")
"""Columns of `Measured.requests`, of which a record's request table has all."""


class MeasuredError(ValueError):
    """A measured run that cannot be read or compared."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured, and what a simulation needs to do the same."""

    name: str
    trace: Trace
    """What was asked for; row i is request i."""
    requests: pd.DataFrame
    """`COLUMNS`, a row a request in order of arrival, s; NaN where a request has no such time."""
    settings: dict[str, Any]
    """Fields of `RunConfig`: how it was run."""
    itl: Distribution | None = None
    """Gaps between tokens, s; None where the source does not hold them."""
    record: Record | None = None
    """Its steps and events, where they are known."""
    peer: pd.DataFrame | None = None
    """Another simulator's `ttft_s`, `tpot_s` and `e2e_s` of the same requests."""
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.requests)


def requests_table(
    trace: Trace,
    ttft_s: NDArray[np.float64],
    tpot_s: NDArray[np.float64],
    e2e_s: NDArray[np.float64],
) -> pd.DataFrame:
    """The table of `Measured.requests`; all arrays in the trace's order, shape [requests]."""
    columns = (
        np.arange(len(trace)),
        trace.arrival_s,
        trace.prompt_tokens,
        trace.output_tokens,
        ttft_s,
        tpot_s,
        e2e_s,
    )
    return pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))


def queue_depth(requests: pd.DataFrame) -> NDArray[np.int64]:
    """How many earlier requests had no token yet when each one arrived, shape [requests].

    Requests that never got a token do not count: they were refused, or ask for none.
    """
    arrival, first = requests["arrival_s"].to_numpy(), _first(requests)
    served = ~np.isnan(first)
    before = np.cumsum(served) - served
    answered = np.searchsorted(np.sort(first[served]), arrival, side="right")
    depth: NDArray[np.int64] = np.maximum(before - answered, 0)
    return depth


def _first(requests: pd.DataFrame) -> NDArray[np.float64]:
    first: NDArray[np.float64] = (requests["arrival_s"] + requests["ttft_s"]).to_numpy(np.float64)
    return first
