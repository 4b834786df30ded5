"""The share of the outputs still to come that admission reserves memory for (`new_token_ratio`)."""

from __future__ import annotations

from collections.abc import Iterable

INITIAL = 0.7
SMALLEST_SHARE = 0.14  # of the initial ratio
DECAY_STEPS = 600
RETRACT_STEPS = 20
"""Decode steps that the ratio after a retraction looks ahead."""


class NewTokenRatio:
    """Falls with every decode step that goes well, and is set anew when memory ran out."""

    def __init__(self, schedule_conservativeness: float = 1.0) -> None:
        self.initial = min(INITIAL * schedule_conservativeness, 1.0)
        self.smallest = min(self.initial * SMALLEST_SHARE, 1.0)
        self.decrement = (self.initial - self.smallest) / DECAY_STEPS
        self.current = self.initial

    def decay(self, steps: int = 1) -> None:
        """`steps` decode steps have gone well; one by one, to the last bit."""
        for _ in range(steps):
            if self.current == self.smallest:
                return
            self.current = max(self.current - self.decrement, self.smallest)

    def reset(self) -> None:
        """The engine was idle."""
        self.current = self.initial

    def after_retraction(self, kept: Iterable[tuple[int, int]]) -> None:
        """Memory ran out; `kept` has the outputs so far and those asked for of who stays."""
        outputs = asked = count = 0
        for so_far, wanted in kept:
            outputs += so_far
            asked += wanted
            count += 1
        self.current = min(1.0, (outputs + RETRACT_STEPS * count) / (asked + 1))
