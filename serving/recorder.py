"""What a run writes down as it goes: a row a step, a line a change, both in flat lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving.request import Request
from serving.step import Step
from serving.tables import KINDS

ADMIT, CHUNK, FIRST, SKIP, PREEMPT, FINISH, LEAVE = range(len(KINDS))
"""Kinds of event as numbers, in the order of `serving.tables.KINDS`."""

ROW_FIELDS = (
    "count",
    "step",
    "start_s",
    "waiting",
    "running",
    "preempted",
    "prefill_tokens",
    "decode_tokens",
    "prefill_slots",
    "decode_slots",
    "prefill_useful_pairs",
    "prefill_computed_pairs",
    "decode_useful_pairs",
    "decode_computed_pairs",
    "prefill_rows",
    "decode_rows",
    "sampled_rows",
    "prefill_kv",
)
"""What a row of `Recorder.rows` holds: `count` equal steps in a row, and the first of them."""


class Recorder:
    """One engine's steps and events, in flat lists (an array converts each number as it comes).

    Steps that follow each other and differ only in what the passing of steps changes share a row;
    their ends and KV blocks are kept one by one.
    """

    def __init__(self) -> None:
        self.rows: list[float] = []
        self.ends: list[float] = []  # s, one a step
        self.blocks: list[int] = []  # KV blocks in use after the plan, one a step
        self.events: list[int] = []
        self.log = self.events.extend  # log((step, request, kind, tokens, row))
        self.refused: list[tuple[Request, str]] = []
        self.waits: dict[int, float] = {}

    def refuse(self, request: Request, reason: str) -> None:
        """A request was refused at arrival."""
        self.refused.append((request, reason))

    def waited(self, request: Request, seconds: float) -> None:
        """How long a request waited by the policy's choice until it was first scheduled."""
        if seconds > 0:
            self.waits[request.index] = seconds

    def step(self, step: Step, start: float, end: float) -> None:
        """One step ran from `start` to `end` (s)."""
        number, _, _, _, preempted, features, waiting, running, blocks = step
        self.rows.extend((1, number, start, waiting, running, len(preempted), *features))
        self.ends.append(end)
        self.blocks.append(blocks)

    def run(self, step: Step, start: float, ends: Sequence[float], blocks: Sequence[int]) -> None:
        """A run of equal decode steps.

        Args:
            step: the first.
            start: when it began, s.
            ends: when each ended, s.
            blocks: KV blocks in use after the plan of each.
        """
        self.rows.extend((len(ends), step.id, start, step.waiting, step.running, 0, *step.features))
        self.ends.extend(ends)
        self.blocks.extend(blocks)

    def step_columns(self) -> dict[str, NDArray[np.float64]]:
        """The steps so far, a column a field of `serving.tables.STEPS`, shape [steps] each."""
        rows = np.array(self.rows, np.float64).reshape(-1, len(ROW_FIELDS))
        counts = rows[:, 0].astype(np.int64)
        table = {name: np.repeat(rows[:, i], counts) for i, name in enumerate(ROW_FIELDS)}
        del table["count"]
        first = np.cumsum(counts) - counts
        ahead = np.arange(len(self.ends)) - np.repeat(first, counts)  # place within its row
        ends = np.array(self.ends, np.float64)
        table["end_s"] = ends
        table["kv_blocks_used"] = np.array(self.blocks, np.float64)
        table["step"] += ahead
        table["decode_useful_pairs"] += ahead * table["decode_tokens"]
        table["decode_computed_pairs"] += ahead * table["decode_rows"]
        later = ahead > 0
        table["start_s"][later] = ends[np.flatnonzero(later) - 1]
        return table

    def event_rows(self) -> NDArray[np.int64]:
        """The events of the steps so far, shape [events, 5], by step, within one as they came."""
        table = np.array(self.events, np.int64).reshape(-1, 5)
        table = table[table[:, 0] < len(self.ends)]  # one that was only planned did not run
        return table[np.argsort(table[:, 0], kind="stable")]
