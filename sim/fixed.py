"""Every step takes the same time: for teaching, and for the worked examples."""

from __future__ import annotations

import math

from serving.step import Features


class FixedCost:
    """A constant time for every step that computes something; an empty step takes none."""

    __slots__ = ("step_s",)

    def __init__(self, step_s: float) -> None:
        """Raises ValueError for a time that is not a positive finite number of seconds."""
        if not (step_s > 0 and math.isfinite(step_s)):
            raise ValueError(f"--step-ms must be a positive number, not {step_s * 1e3:g}")
        self.step_s = step_s

    def seconds(self, f: Features) -> float:
        """Seconds of one step."""
        return self.step_s if f.prefill_slots + f.decode_slots else 0.0

    def seconds_run(self, f: Features, k: int) -> list[float]:
        """Seconds of `k` decode steps in a row."""
        return [self.seconds(f)] * k
