"""What a run writes down as it goes: its steps, and a line a change."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serving.request import Request
from serving.step import Features, Step
from serving.unbroken import unbroken

ADMIT: Final = 0
CHUNK: Final = 1
FIRST: Final = 2
SKIP: Final = 3
PREEMPT: Final = 4
FINISH: Final = 5
LEAVE: Final = 6
"""Kinds of event as numbers, in the order of `serving.tables.KINDS`."""

SETTLE = 1 << 14
"""Rows after which steps and events become columns, which take less memory."""

Columns = dict[str, NDArray[Any]]

Sink = Callable[[Columns, NDArray[np.int64], Mapping[int, float]], None]
"""Takes the next steps of an engine (a column a field of `serving.tables.STEPS`), all events of
them by step (shape [events, 5]), and by request how long it waited by choice, s."""


ROW = ("steps", "step", "waiting", "running", "preempted", "kv_blocks_used", *Features._fields)
"""What is noted of steps that follow each other and are equal but for what their passing changes;
`steps` is how many."""


class Recorder:
    """One engine's steps and events, kept as they come and made into columns once.

    A run of equal steps is one row; their ends and KV blocks are kept one by one. Starts, rows,
    ends, blocks and events are those of the current lot; earlier ones are columns. Another thread
    may read them while it holds `lock`.
    """

    def __init__(self, sink: Sink | None = None, lot: int = SETTLE) -> None:
        """Begin with nothing.

        Args:
            sink: what lots are handed on to, the last one by `close`; None: they are kept, for
                `step_columns` and `event_rows`.
            lot: rows of a lot.
        """
        self.starts: list[float] = []  # s, one a row
        self.rows: list[int] = []  # the fields of ROW, row after row
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
        number, _, _, _, preempted, features, waiting, running, used = step
        self.starts.append(start)
        self.ends.append(end)
        self.rows.extend((1, number, waiting, running, len(preempted), used))
        self.rows.extend(features)  # last: an interrupt leaves no whole row without its end
        if len(self.starts) >= self._lot:
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
        self.starts.append(start)
        self.ends.extend(ends)
        self.blocks.extend(blocks[1:])
        self.rows.extend((len(ends), number, waiting, running, 0, used))
        self.rows.extend(features)
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
            events = _table(self.events, 5)
            columns = _columns(self.rows, self.starts, self.ends, self.blocks)
            with self.lock:
                self.lots.append((columns, events))
                self.settled += 1
                self._steps += len(columns["step"])
                self.finished += int(np.count_nonzero(events[:, 2] == FINISH))
                self.starts.clear()
                self.rows.clear()
                self.ends.clear()
                self.blocks.clear()
                self.events.clear()
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


def _table(numbers: Sequence[int], width: int) -> NDArray[np.int64]:
    """Whole rows of so many numbers each; four times as fast as `np.array`."""
    count = len(numbers) // width * width
    packed = struct.pack(f"{count}q", *numbers[:count])
    return np.frombuffer(packed, np.int64).reshape(-1, width)


def _columns(
    rows: Sequence[int], starts: Sequence[float], ends: Sequence[float], blocks: Sequence[int]
) -> Columns:
    """A line a step, from rows that stand for one or more each, as far as they are whole."""
    table = _table(rows, len(ROW))
    counts = table[:, 0]
    columns: Columns = {name: np.repeat(table[:, i], counts) for i, name in enumerate(ROW) if i}
    first, count = np.cumsum(counts) - counts, int(counts.sum())
    ahead = np.arange(count) - np.repeat(first, counts)  # place within its row
    columns["start_s"] = start = np.repeat(np.fromiter(starts, np.float64, len(table)), counts)
    columns["end_s"] = end = np.fromiter(ends, np.float64, count)
    columns["step"] += ahead
    columns["decode_useful_pairs"] += ahead * columns["decode_tokens"]
    columns["decode_computed_pairs"] += ahead * columns["decode_rows"]
    columns["decode_longest"] += ahead
    later = ahead > 0
    start[later] = end[np.flatnonzero(later) - 1]
    columns["kv_blocks_used"][later] = _table(blocks, 1)[: later.sum(), 0]
    return columns
