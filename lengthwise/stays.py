"""Who held a seat when, and what for: a request's events put together, stay by stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving.gaps import StepIndex
from serving.record import Record

# In one step a request's events happened in this order.
_ORDER = ("preempt", "admit", "chunk", "first", "skip", "finish", "leave")


@dataclass
class Stay:
    """One stay of a request in a seat, from its admission to its finish or preemption.

    Steps are places in `Replica.steps`.
    """

    request: int
    row: int
    """Its row in a padded batch, otherwise -1."""
    begin: int
    """The step that admitted it."""
    end: int = -1
    """The last step of the stay: the one that finished it, or the one before its preemption."""
    hold: int = -1
    """The last step in which its row was held, the same as `end` outside drained batches."""
    preempted: bool = False
    first: int | None = None
    """The step that completed its known tokens."""
    chunks: list[tuple[int, int]] = field(default_factory=list)
    """Step and tokens of each piece of prefill."""
    skips: list[int] = field(default_factory=list)
    """Steps in which it decoded but got no token."""


@dataclass(frozen=True, eq=False)
class Replica:
    """One replica's steps in order, and the stays in its seats."""

    steps: pd.DataFrame
    stays: list[Stay]

    @cached_property
    def start(self) -> NDArray[np.float64]:
        """When each step began, s, shape [steps]."""
        return self.steps["start_s"].to_numpy(np.float64)

    @cached_property
    def end(self) -> NDArray[np.float64]:
        """When each step ended, s, shape [steps]."""
        return self.steps["end_s"].to_numpy(np.float64)

    def by_request(self) -> dict[int, list[Stay]]:
        """Each request's stays, in order."""
        found: dict[int, list[Stay]] = {}
        for stay in self.stays:
            found.setdefault(stay.request, []).append(stay)
        return found


def replica(record: Record, number: int = 0, requests: list[int] | None = None) -> Replica:
    """The stays on one replica, by request, then time.

    Args:
        record: the run.
        number: which replica.
        requests: only these; all if left out.
    """
    index = StepIndex.of(record.requests, record.steps, record.events)
    order = record.steps["replica"].to_numpy()[index.order]
    begin, end = np.searchsorted(order, [number, number + 1])
    mine = (index.event >= begin) & (index.event < end)
    if requests is not None:
        mine &= np.isin(record.events["request"].to_numpy(), requests)
    events = record.events[mine]
    place = index.event[mine] - begin
    kind = events["kind"].cat
    rank = np.array([_ORDER.index(str(k)) for k in kind.categories], np.int64)[kind.codes]
    sort = np.lexsort((rank, place, events["request"].to_numpy()))
    table = record.steps.iloc[index.order[begin:end]].reset_index(drop=True)
    rows = zip(
        events["request"].to_numpy()[sort].tolist(),
        place[sort].tolist(),
        rank[sort].tolist(),
        events["tokens"].to_numpy()[sort].tolist(),
        events["row"].to_numpy()[sort].tolist(),
        strict=True,
    )
    return Replica(table, list(_stays(rows, len(table) - 1)))


def _stays(rows: Iterator[tuple[int, int, int, int, int]], last: int) -> Iterator[Stay]:
    """Put events, sorted by request and time, together; a stay that never ends reaches `last`."""
    stay: Stay | None = None
    for request, place, rank, tokens, row in rows:
        kind = _ORDER[rank]
        if stay is not None and (stay.request != request or kind == "admit"):
            yield _closed(stay, last)
            stay = None
        if kind == "admit":
            stay = Stay(request, row, place)
        elif stay is None:
            continue  # a preemption that came too late: its last token was on its way
        elif kind == "chunk":
            stay.chunks.append((place, tokens))
        elif kind == "first":
            stay.first = place
        elif kind == "skip":
            stay.skips.append(place)
        elif kind == "finish":
            stay.end = place
        elif kind == "leave":
            stay.hold = place
        elif stay.end < 0:
            stay.end, stay.preempted = place - 1, True
            yield _closed(stay, last)
            stay = None
    if stay is not None:
        yield _closed(stay, last)


def _closed(stay: Stay, last: int) -> Stay:
    if stay.end < 0:
        stay.end = last
    stay.hold = max(stay.hold, stay.end)
    return stay
