"""A piecewise-linear curve that gives the same bits for one number and for an array."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


class Curve:
    """Straight lines through (x, y) points, going on at the ends as the outer pieces do.

    `at` and `many` do the same arithmetic in the same order: y[i] + (x - x[i]) * slope[i].
    """

    __slots__ = ("slopes", "xs", "ys")

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        """Raises ValueError unless there are two points or more and x rises."""
        if len(xs) != len(ys) or len(xs) < 2:
            raise ValueError(f"a curve needs two or more points, not {len(xs)} and {len(ys)}")
        if any(b <= a for a, b in pairwise(xs)):
            raise ValueError(f"a curve's x must rise: {list(xs)}")
        self.xs = tuple(float(x) for x in xs)
        self.ys = tuple(float(y) for y in ys)
        inner = [
            (self.ys[i + 1] - self.ys[i]) / (self.xs[i + 1] - self.xs[i])
            for i in range(len(xs) - 1)
        ]
        self.slopes = (*inner, inner[-1])

    def at(self, x: float) -> float:
        """The value at `x`."""
        i = bisect_right(self.xs, x) - 1
        if i < 0:
            i = 0
        return self.ys[i] + (x - self.xs[i]) * self.slopes[i]

    def many(self, x: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
        """The values at `x`, same shape."""
        i = np.maximum(np.searchsorted(self.xs, x, side="right") - 1, 0)
        value: NDArray[np.float64] = (
            np.asarray(self.ys)[i] + (x - np.asarray(self.xs)[i]) * np.asarray(self.slopes)[i]
        )
        return value
