"""Quantities that hold between changes (requests running, tokens in the step), over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving.gaps import StepIndex
from serving.record import Record

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Level:
    """A quantity that is `values[i]` from `times[i]` to `times[i + 1]`, and 0 before and after."""

    times: FloatArray
    """Seconds, rising, shape [changes]."""
    values: FloatArray
    """Shape [changes]; the last one is 0."""

    @classmethod
    def of(cls, times: ArrayLike, changes: ArrayLike) -> Level:
        """The running sum of `changes` at `times` (s, any order)."""
        at, by = np.asarray(times, np.float64), np.asarray(changes, np.float64)
        if (at[1:] < at[:-1]).any():
            order = np.argsort(at, kind="stable")
            at, by = at[order], by[order]
        last = np.append(at[1:] > at[:-1], True)[: len(at)]  # of its moment
        return cls(at[last], np.cumsum(by)[last])

    def mean(self, edges: FloatArray) -> FloatArray:
        """The mean over each interval between `edges` (s, rising), shape [edges - 1]."""
        if not len(self.times):
            return np.zeros(len(edges) - 1)
        area = np.append(0.0, np.cumsum(self.values[:-1] * np.diff(self.times)))
        means: FloatArray = np.diff(np.interp(edges, self.times, area)) / np.diff(edges)
        return means

    def peak(self, edges: FloatArray) -> FloatArray:
        """The largest value in each interval between `edges` (s, rising), shape [edges - 1]."""
        values = np.append(0.0, self.values)  # what holds before the first change, too
        begin = np.searchsorted(self.times, edges[:-1], side="right")
        end = np.searchsorted(self.times, edges[1:], side="left")
        pairs = np.stack([begin, np.maximum(end, begin) + 1], axis=1).ravel()
        peaks: FloatArray = np.maximum.reduceat(np.append(values, 0.0), pairs)[::2]
        return peaks


def in_steps(steps: pd.DataFrame | Mapping[str, NDArray[Any]], values: ArrayLike) -> Level:
    """A quantity of the step that runs, summed over replicas, 0 while idle.

    Args:
        steps: the step table, or its columns `start_s` and `end_s`.
        values: one a step.
    """
    v = np.asarray(values, np.float64)
    times = np.stack([steps["start_s"], steps["end_s"]], axis=1)  # of one replica, in order
    return Level.of(times.ravel(), np.stack([v, -v], axis=1).ravel())


def waiting(record: Record) -> Level:
    """Requests that have arrived, or were preempted, and are in no seat."""
    index = StepIndex.of(record.requests, record.steps, record.events)
    starts = record.steps["start_s"].to_numpy()[index.order][index.event]
    kind = record.events["kind"].to_numpy()
    taken = record.requests[record.requests["status"] != "refused"]
    arrivals, admits = taken["arrival_s"].to_numpy(), starts[kind == "admit"]
    # Two steps deep, a request may be preempted while its last token is on its way.
    finish = taken.set_index("request")["finished_s"]
    over = finish.reindex(record.events["request"]).to_numpy() <= starts
    preempts = starts[(kind == "preempt") & ~over]
    return Level.of(
        np.concatenate([arrivals, admits, preempts]),
        np.repeat([1, -1, 1], [len(arrivals), len(admits), len(preempts)]),
    )


def edges(record: Record, most: int, window: tuple[float, float] | None = None) -> FloatArray:
    """Interval bounds over a run or a window of it (s): each step's if they are few, else equal.

    Args:
        record: the run.
        most: the largest number of intervals.
        window: from and to, in seconds; the whole run if left out.
    """
    start, end = record.step_columns("start_s", "end_s").values()
    low, high = window or span({"": record})
    bounds = np.concatenate([start, end])
    bounds = bounds[(bounds > low) & (bounds < high)]
    if len(np.unique(bounds[: 4 * most])) < most:  # most runs have more than enough at once
        bounds = np.unique(bounds)
        if len(bounds) < most:
            return np.concatenate([[low], bounds, [high]])
    return np.linspace(low, high, most + 1)


def span(records: dict[str, Record]) -> tuple[float, float]:
    """From the first arrival to the last step's end of any of the runs, in seconds."""
    arrivals = [r.request_columns["arrival_s"] for r in records.values()]
    ends = [r.step_columns("end_s")["end_s"] for r in records.values()]
    low = float(min((times.min() for times in arrivals if len(times)), default=0.0))
    high = float(max((times.max() for times in ends if len(times)), default=low))
    return low, high if high > low else low + 1.0
