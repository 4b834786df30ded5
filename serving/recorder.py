"""What a run writes down as it goes: its steps, and a line a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.request import Request
from serving.step import NEW, Features, Step
from serving.tables import KINDS
from serving.unbroken import unbroken

ADMIT, CHUNK, FIRST, SKIP, PREEMPT, FINISH, LEAVE = range(len(KINDS))
"""Kinds of event as numbers, in the order of `serving.tables.KINDS`."""

SETTLE = 1 << 14
"""Rows after which steps and events become columns, which take less memory."""

Columns = dict[str, NDArray[Any]]

Sink = Callable[[Columns, NDArray[np.int64], Mapping[int, float]], None]
"""Takes the next steps of an engine (a column a field of `serving.tables.STEPS`), all events of
them by step (shape [events, 5]), and by request how long it waited by choice, s."""


class Row(NamedTuple):
    """Steps that follow each other and are equal but for what the passing of steps changes."""

    steps: int
    step: int
    start_s: float
    waiting: int
    running: int
    preempted: int
    kv_blocks_used: int
    features: Features


class Recorder:
    """One engine's steps and events, kept as they come and made into columns once.

    A run of equal steps is one row; their ends and KV blocks are kept one by one. Rows, ends,
    blocks and events are those of the current lot; earlier ones are columns. Another thread may
    read them while it holds `lock`.
    """

    def __init__(self, sink: Sink | None = None, lot: int = SETTLE) -> None:
        """Begin with nothing.

        Args:
            sink: what lots are handed on to, the last one by `close`; None: they are kept, for
                `step_columns` and `event_rows`.
            lot: rows of a lot.
        """
        self.rows: list[Row] = []
        self.ends: list[float] = []  # s, one a step
        self.blocks: list[int] = []  # KV blocks in use, one for each later step of a row
        self.events: list[int] = []
        self.log = self.events.extend  # log((step, request, kind, tokens, row))
        self.refused: list[tuple[Request, str]] = []
        self.waits: dict[int, float] = {}
        self.lock = Lock()
        self.settled = 0  # lots
        self.finished = 0  # requests, in settled lots
        self.lots: list[tuple[Columns, NDArray[np.int64]]] = []  # settled and not handed on
        self._sink, self._lot = sink, lot
        self._steps = 0  # in settled lots
        self._handed = 0  # of these, handed on

    def __len__(self) -> int:
        """Steps so far."""
        return self._steps + len(self.ends)

    def refuse(self, request: Request, reason: str) -> None:
        """A request was refused at arrival."""
        self.refused.append((request, reason))

    def waited(self, request: Request, seconds: float) -> None:
        """How long a request waited by the policy's choice until it was first scheduled."""
        if seconds > 0:
            self.waits[request.index] = seconds

    def step(self, step: Step, start: float, end: float) -> None:
        """One step ran from `start` to `end` (s)."""
        rows = self.rows
        number, _, _, _, preempted, features, waiting, running, used = step
        row = (1, number, start, waiting, running, len(preempted), used, features)
        self.ends.append(end)
        rows.append(NEW(Row, row))  # last: an interrupt leaves no row without its end
        if len(rows) >= self._lot:
            self._settle()

    def run(self, step: Step, start: float, ends: Sequence[float], blocks: Sequence[int]) -> None:
        """A run of equal decode steps.

        Args:
            step: the first.
            start: when it began, s.
            ends: when each ended, s.
            blocks: KV blocks in use after the plan of each.
        """
        number, _, _, _, _, features, waiting, running, used = step
        self.ends.extend(ends)
        self.blocks.extend(blocks[1:])
        self.rows.append(Row(len(ends), number, start, waiting, running, 0, used, features))
        if len(self.ends) >= 4 * self._lot:
            self._settle()

    def step_columns(self) -> Columns:
        """The steps so far, a column a field of `serving.tables.STEPS`, shape [steps] each."""
        return dict(self._whole()[0])

    def event_rows(self) -> NDArray[np.int64]:
        """The events of the steps so far, shape [events, 5], by step, within one as they came."""
        table = self._whole()[1]
        return _by_step(table[table[:, 0] < self._steps])  # one only planned did not run

    def close(self) -> None:
        """Hand on what is left, once all is over."""
        self._settle()
        self._hand_on(0)

    def _whole(self) -> tuple[Columns, NDArray[np.int64]]:
        """All lots as one; a column's parts are let go as soon as it is made."""
        self._settle()
        if len(self.lots) > 1:
            parts = [columns for columns, _ in self.lots]
            events = np.concatenate([rows for _, rows in self.lots])
            self.lots = [({}, events)]
            for name in list(parts[0]):
                self.lots[0][0][name] = np.concatenate([part.pop(name) for part in parts])
        return self.lots[0]

    def _settle(self) -> None:
        """Make columns of what has come since the last time."""
        if self.lots and not self.rows and not self.events:
            return
        with unbroken():
            events = np.array(self.events, np.int64).reshape(-1, 5)
            columns = _columns(self.rows, self.ends, self.blocks)
            with self.lock:
                self.lots.append((columns, events))
                self.settled += 1
                self._steps += len(columns["step"])
                self.finished += int(np.count_nonzero(events[:, 2] == FINISH))
                for lot in (self.rows, self.ends, self.blocks, self.events):
                    lot.clear()
            self._hand_on(1)

    def _hand_on(self, stay: int) -> None:
        """Hand on all lots but so many. The last may still get events: a step ends after it."""
        while self._sink is not None and len(self.lots) > stay:
            steps, events = self.lots.pop(0)
            first, self._handed = self._handed, self._handed + len(steps["step"])
            if self.lots:
                later, behind = self.lots[0]
                events = np.concatenate([events, behind])
                self.lots[0] = (later, events[events[:, 0] >= self._handed])
            events = events[events[:, 0] < self._handed]
            if (events[:, 0] < first).any():
                raise RuntimeError(f"an event of step {events[:, 0].min()}, which ended long ago")
            waits, self.waits = self.waits, {}
            self._sink(steps, _by_step(events), waits)


def _by_step(events: NDArray[np.int64]) -> NDArray[np.int64]:
    """Events by step, within one as they came."""
    step = events[:, 0]
    return events[np.argsort(step, kind="stable")] if (np.diff(step) < 0).any() else events


def _columns(rows: Sequence[Row], ends: Sequence[float], blocks: Sequence[int]) -> Columns:
    """A line a step, from rows that stand for one or more each; ends without a row are not told."""
    *fields, features = zip(*rows, strict=True) if rows else [()] * len(Row._fields)
    sums = np.fromiter(chain.from_iterable(features), np.int64).reshape(-1, len(Features._fields))
    counts = np.array(fields[0], np.int64)
    table: Columns = {
        name: np.repeat(np.array(values, float if name == "start_s" else np.int64), counts)
        for name, values in zip(Row._fields[1:-1], fields[1:], strict=True)
    }
    table |= {name: np.repeat(sums[:, i], counts) for i, name in enumerate(Features._fields)}
    first, count = np.cumsum(counts) - counts, int(counts.sum())
    ahead = np.arange(count) - np.repeat(first, counts)  # place within its row
    table["end_s"] = end = np.array(ends[:count], np.float64)
    table["step"] += ahead
    table["decode_useful_pairs"] += ahead * table["decode_tokens"]
    table["decode_computed_pairs"] += ahead * table["decode_rows"]
    table["decode_longest"] += ahead
    later = ahead > 0
    table["start_s"][later] = end[np.flatnonzero(later) - 1]
    table["kv_blocks_used"][later] = blocks[: later.sum()]
    return table
