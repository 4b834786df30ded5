"""What a run writes down as it goes: a row a step, a line a change, both in flat buffers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving.request import Request
from serving.step import Step
from serving.tables import KINDS

ADMIT, CHUNK, FIRST, SKIP, PREEMPT, FINISH, LEAVE = range(len(KINDS))
"""Kinds of event as numbers, in the order of `serving.tables.KINDS`."""

STEP_FIELDS = (
    "step",
    "start_s",
    "end_s",
    "waiting",
    "running",
    "kv_blocks_used",
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
"""What one row of `Recorder.steps` holds, in this order."""

_WIDTH = len(STEP_FIELDS)
_BLOCKS = STEP_FIELDS.index("kv_blocks_used")
_USEFUL = STEP_FIELDS.index("decode_useful_pairs")
_COMPUTED = STEP_FIELDS.index("decode_computed_pairs")


class Recorder:
    """Rows of one engine's steps and events, 152 and 40 bytes each.

    Numbers are kept as doubles and 64-bit integers: exact up to 2^53.
    """

    def __init__(self) -> None:
        self.steps = array("d")
        self.events = array("q")
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
        self.steps.extend(
            (
                step.id,
                start,
                end,
                step.waiting,
                step.running,
                step.blocks_used,
                len(step.preempted),
                *step.features,
            )
        )

    def run(
        self, step: Step, start: float, ends: NDArray[np.float64], blocks_used: Sequence[int]
    ) -> None:
        """A run of equal decode steps, the first of them `step`.

        Args:
            step: the first.
            start: when it began, s.
            ends: when each ended, s, shape [steps].
            blocks_used: KV blocks in use after the plan of each, shape [steps].
        """
        count = len(ends)
        f = step.features
        first = (step.id, start, 0.0, step.waiting, step.running, 0, 0, *f)
        rows = np.empty((count, _WIDTH))
        rows[:] = first
        ahead = np.arange(count, dtype=np.float64)
        rows[:, 0] += ahead
        rows[1:, 1] = ends[:-1]
        rows[:, 2] = ends
        rows[:, _BLOCKS] = blocks_used
        rows[:, _USEFUL] += ahead * f.decode_tokens
        rows[:, _COMPUTED] += ahead * f.decode_rows
        self.steps.frombytes(rows.tobytes())

    def step_columns(self) -> dict[str, NDArray[np.float64]]:
        """The steps so far, a column a field, shape [steps] each."""
        table = np.frombuffer(self.steps, np.float64).reshape(-1, _WIDTH)
        return {name: table[:, i].copy() for i, name in enumerate(STEP_FIELDS)}

    def event_rows(self) -> NDArray[np.int64]:
        """The events so far, shape [events, 5], by step and within a step as they came."""
        table = np.frombuffer(self.events, np.int64).reshape(-1, 5)
        return table[np.argsort(table[:, 0], kind="stable")]
