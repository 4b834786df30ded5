"""The highest rate that keeps an SLO: bisection on how many times as fast the requests come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

FASTEST = 2.0**16
"""Times the trace's own rate, above which no more is asked."""

FURTHEST = 4.0
"""The largest factor between two rates."""

LONELY = 1e-5
"""Times the trace's own rate: no request meets another."""


class Verdict(Protocol):
    """What one run says."""

    @property
    def sustained(self) -> bool:
        """Whether the limits hold and the queue does not grow."""

    @property
    def overlaps(self) -> bool:
        """Whether requests arrive over a longer time than one of them takes."""


V = TypeVar("V", bound=Verdict)


@dataclass(frozen=True)
class Found(Generic[V]):
    """Between which rates the limit lies."""

    low: tuple[float, V] | None
    """The highest scale that was sustained, and its run; None if none is."""
    high: tuple[float, V] | None
    """The lowest scale above it that was not; None if the trace can show none."""
    runs: tuple[tuple[float, V], ...]
    """Every run, in order."""


def highest(
    probe: Callable[[float], V],
    start: float,
    tolerance: float,
    factor: float = 2.0,
    known: V | None = None,
) -> Found[V]:
    """Bisect on the scale, in its logarithm; the same requests come at every rate.

    Args:
        probe: runs the trace at a scale of its own rate.
        start: where to begin.
        tolerance: `high` is at most (1 + tolerance) × `low`.
        factor: between the first probes, until one is sustained and one is not.
        known: what the probe says at `start`, if it was asked before.
    """
    runs: list[tuple[float, V]] = []

    def ask(scale: float) -> V:
        runs.append((scale, probe(scale) if runs or known is None else known))
        return runs[-1][1]

    low = high = alone = None
    scale = start
    while low is None or high is None:
        verdict = ask(scale)
        if verdict.sustained:
            low = scale, verdict
            if scale >= FASTEST or not verdict.overlaps:
                break
            scale *= factor
        else:
            if factor >= FURTHEST and alone is None:  # far too much: is it ever sustained?
                alone = ask(LONELY)
                if not alone.sustained:
                    return Found(None, (scale, verdict), tuple(runs))
            high = scale, verdict
            scale /= factor
            if scale <= LONELY and alone is not None:
                low = LONELY, alone
        factor = min(factor * factor, FURTHEST)
    while low is not None and high is not None and high[0] > low[0] * (1 + tolerance):
        middle = (low[0] * high[0]) ** 0.5
        verdict = ask(middle)
        if verdict.sustained:
            low = middle, verdict
        else:
            high = middle, verdict
    return Found(low, high, tuple(runs))
