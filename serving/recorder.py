"""What a run writes down as it goes: its steps, and a line a change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from serving.request import Request
from serving.step import Features, Step
from serving.tables import KINDS

ADMIT, CHUNK, FIRST, SKIP, PREEMPT, FINISH, LEAVE = range(len(KINDS))
"""Kinds of event as numbers, in the order of `serving.tables.KINDS`."""

SETTLE = 1 << 14
"""Rows after which steps and events become columns: what a step refers to is let go then."""

Columns = dict[str, NDArray[np.float64]]


class Recorder:
    """One engine's steps and events, kept as they come and made into columns once.

    Steps that follow each other and differ only in what the passing of steps changes share a row;
    their ends and KV blocks are kept one by one.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, Step]] = []  # equal steps, start (s), the first of them
        self.ends: list[float] = []  # s, one a step
        self.blocks: list[int] = []  # KV blocks in use, one for each later step of a row
        self.events: list[int] = []
        self.log = self.events.extend  # log((step, request, kind, tokens, row))
        self.refused: list[tuple[Request, str]] = []
        self.waits: dict[int, float] = {}
        self._settled: list[tuple[Columns, NDArray[np.int64]]] = []
        self._steps = 0  # settled ones

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
        rows.append((1, start, step))
        self.ends.append(end)
        if len(rows) >= SETTLE:
            self._settle()

    def run(self, step: Step, start: float, ends: Sequence[float], blocks: Sequence[int]) -> None:
        """A run of equal decode steps.

        Args:
            step: the first.
            start: when it began, s.
            ends: when each ended, s.
            blocks: KV blocks in use after the plan of each.
        """
        self.rows.append((len(ends), start, step))
        self.ends.extend(ends)
        self.blocks.extend(blocks[1:])
        if len(self.ends) >= 4 * SETTLE:
            self._settle()

    def step_columns(self) -> Columns:
        """The steps so far, a column a field of `serving.tables.STEPS`, shape [steps] each."""
        self._settle()
        parts = [columns for columns, _ in self._settled]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def event_rows(self) -> NDArray[np.int64]:
        """The events of the steps so far, shape [events, 5], by step, within one as they came."""
        self._settle()
        table = np.concatenate([rows for _, rows in self._settled])
        table = table[table[:, 0] < self._steps]  # one that was only planned did not run
        return table[np.argsort(table[:, 0], kind="stable")]

    def _settle(self) -> None:
        """Make columns of what has come since the last time."""
        events = np.array(self.events, np.int64).reshape(-1, 5)
        self._settled.append((_columns(self.rows, self.ends, self.blocks), events))
        self._steps += len(self.ends)
        for settled in (self.rows, self.ends, self.blocks, self.events):
            settled.clear()


def _columns(
    rows: Sequence[tuple[int, float, Step]], ends: Sequence[float], blocks: Sequence[int]
) -> Columns:
    """A line a step, from rows that stand for one or more each."""
    steps = [step for _, _, step in rows]
    sums = _column(chain.from_iterable(step.features for step in steps))
    table: Columns = {
        "step": _column(step.id for step in steps),
        "start_s": _column(start for _, start, _ in rows),
        "waiting": _column(step.waiting for step in steps),
        "running": _column(step.running for step in steps),
        "preempted": _column(len(step.preempted) for step in steps),
        "kv_blocks_used": _column(step.blocks_used for step in steps),
        **dict(zip(Features._fields, sums.reshape(-1, len(Features._fields)).T, strict=True)),
    }
    counts = np.fromiter((count for count, _, _ in rows), np.int64, len(rows))
    table = {name: np.repeat(row, counts) for name, row in table.items()}
    first = np.cumsum(counts) - counts
    ahead = np.arange(len(ends)) - np.repeat(first, counts)  # place within its row
    table["end_s"] = end = np.array(ends, np.float64)
    table["step"] += ahead
    table["decode_useful_pairs"] += ahead * table["decode_tokens"]
    table["decode_computed_pairs"] += ahead * table["decode_rows"]
    later = ahead > 0
    table["start_s"][later] = end[np.flatnonzero(later) - 1]
    table["kv_blocks_used"][later] = blocks
    return table


def _column(values: Iterable[float]) -> NDArray[np.float64]:
    return np.fromiter(values, np.float64)
