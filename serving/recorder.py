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
"""Rows after which steps and events become columns."""

PACK = 1 << 8
"""Rows after which their numbers are packed: while they are in the processor's cache."""

Columns = dict[str, NDArray[Any]]

Sink = Callable[[Columns, NDArray[np.int64], Mapping[int, float]], None]
"""Takes the next steps of an engine (a column a field of `serving.tables.STEPS`), all events of
them by step (shape [events, 5]), and by request how long it waited by choice, s."""


ROW = (
    *("steps", "counted", "step", "waiting", "running", "preempted", "kv_blocks_used"),
    *Features._fields,
)
"""What is noted of steps that follow each other and are equal but for what their passing changes;
`steps` is how many, `counted` in how many of the later ones KV blocks are: all or none."""


class Packed:
    """The numbers of a lot as bytes, eight each."""

    __slots__ = ("blocks", "ends", "events", "rows", "starts")

    def __init__(self) -> None:
        self.starts = bytearray()
        self.rows = bytearray()
        self.ends = bytearray()
        self.blocks = bytearray()
        self.events = bytearray()


class Recorder:
    """One engine's steps and events, kept as they come and made into columns once.

    A run of equal steps is one row; their ends are kept one by one, and their KV blocks where these
    change. Starts, rows, ends, blocks and events are the latest ones; earlier ones are packed, and
    before these are columns. Another thread may read them while it holds `lock`.
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
        self.blocks: list[int] = []  # KV blocks in use, one for each later step that is counted
        self.events: list[int] = []
        self.log = self.events.extend  # log((step, request, kind, tokens, row))
        self.refused: list[tuple[Request, str]] = []
        self.waits: dict[int, float] = {}
        self.lock = Lock()
        self.packed = 0  # times that the latest ones were packed
        self.finished = 0  # requests, in what is packed
        self.lots: list[tuple[Columns, NDArray[np.int64]]] = []  # settled and not handed on
        self._sink, self._lot, self._pack_at = sink, lot, min(lot, PACK)
        self._bytes = Packed()
        self._steps = 0  # packed
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
        self.rows.extend((1, 0, number, waiting, running, len(preempted), used))
        self.rows.extend(features)  # last: an interrupt leaves no whole row without its end
        if len(self.starts) >= self._pack_at:
            self._pack()

    def run(self, step: Step, start: float, ends: Sequence[float], blocks: Sequence[int]) -> None:
        """A run of equal decode steps.

        Args:
            step: the first.
            start: when it began, s.
            ends: when each ended, s.
            blocks: KV blocks in use after the plan of each; none where they are as in the first.
        """
        number, _, _, _, _, features, waiting, running, used = step
        self.starts.append(start)
        self.ends.extend(ends)
        later = blocks[1:]
        self.blocks.extend(later)
        self.rows.extend((len(ends), len(later), number, waiting, running, 0, used))
        self.rows.extend(features)
        if len(self.ends) >= 4 * self._pack_at:
            self._pack()

    def step_columns(self) -> Columns:
        """The steps so far, a column a field of `serving.tables.STEPS`, shape [steps] each."""
        return dict(self._whole()[0])

    def event_rows(self) -> NDArray[np.int64]:
        """The events of the steps so far, shape [events, 5], by step, within one as they came."""
        table = self._whole()[1]
        return _by_step(table[table[:, 0] < self._steps])  # one only planned did not run

    def close(self) -> None:
        """Hand on what is left, once all is over."""
        self._rest()
        self._hand_on(0)

    def _whole(self) -> tuple[Columns, NDArray[np.int64]]:
        """All lots as one; a column's parts are let go as soon as it is made."""
        self._rest()
        if len(self.lots) > 1:
            parts = [columns for columns, _ in self.lots]
            events = np.concatenate([rows for _, rows in self.lots])
            self.lots = [({}, events)]
            for name in list(parts[0]):
                self.lots[0][0][name] = np.concatenate([part.pop(name) for part in parts])
        return self.lots[0]

    def _rest(self) -> None:
        """Settle what is left; without any, one empty lot."""
        self._pack()
        if self._bytes.rows or self._bytes.events or not self.lots:
            self._settle()

    def _pack(self) -> None:
        """Pack the latest numbers, as far as rows and events are whole."""
        packed, width = self._bytes, len(ROW)
        with unbroken():
            rows = len(self.rows) // width
            steps = sum(self.rows[: rows * width : width])
            counted = sum(self.rows[1 : rows * width : width])
            packed.rows += _packed("q", self.rows[: rows * width])
            packed.starts += _packed("d", self.starts[:rows])
            packed.ends += _packed("d", self.ends[:steps])
            packed.blocks += _packed("q", self.blocks[:counted])
            packed.events += _packed("q", self.events[: len(self.events) // 5 * 5])
            with self.lock:
                self.packed += 1
                self._steps += steps
                self.finished += self.events[2::5].count(FINISH)
                self.starts.clear()
                self.rows.clear()
                self.ends.clear()
                self.blocks.clear()
                self.events.clear()
            if len(packed.starts) >= 8 * self._lot or len(packed.ends) >= 32 * self._lot:
                self._settle()

    def _settle(self) -> None:
        """Make columns of what is packed, and hand on the lots before."""
        packed, self._bytes = self._bytes, Packed()
        events = np.frombuffer(packed.events, np.int64).reshape(-1, 5)
        self.lots.append((_columns(packed), events))
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


def _packed(kind: str, numbers: Sequence[float]) -> bytes:
    """Numbers as bytes, `q` whole ones or `d` any; four times as fast as `np.array`."""
    return struct.pack(f"{len(numbers)}{kind}", *numbers)


def _columns(packed: Packed) -> Columns:
    """A line a step, from rows that stand for one or more each."""
    table = np.frombuffer(packed.rows, np.int64).reshape(-1, len(ROW))
    counts = table[:, 0]
    columns: Columns = {n: np.repeat(table[:, i], counts) for i, n in enumerate(ROW) if i > 1}
    first, count = np.cumsum(counts) - counts, int(counts.sum())
    ahead = np.arange(count) - np.repeat(first, counts)  # place within its row
    columns["start_s"] = start = np.repeat(np.frombuffer(packed.starts, np.float64), counts)
    columns["end_s"] = end = np.frombuffer(packed.ends, np.float64)
    columns["step"] += ahead
    columns["decode_useful_pairs"] += ahead * columns["decode_tokens"]
    columns["decode_computed_pairs"] += ahead * columns["decode_rows"]
    columns["decode_longest"] += ahead
    later = ahead > 0
    start[later] = end[np.flatnonzero(later) - 1]
    later &= np.repeat(table[:, 1] > 0, counts)
    columns["kv_blocks_used"][later] = np.frombuffer(packed.blocks, np.int64)
    return columns
