"""A piecewise-linear curve that gives the same bits for one number and for an array."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import ceil

import numpy as np
from numpy.typing import NDArray


class Curve:
    """Straight lines through (x, y) points, going on at the ends as the outer pieces do.

    `at` and `many` do the same arithmetic in the same order: y[i] + (x - x[i]) * slope[i].
    """

    __slots__ = ("_arrays", "slopes", "xs", "ys")

    def __init__(
        self,
        xs: Sequence[float] | NDArray[np.float64],
        ys: Sequence[float] | NDArray[np.float64],
        end_slope: float | None = None,
    ) -> None:
        """`end_slope` is the slope after the last point, where it is not the last piece's.

        Raises:
            ValueError: fewer than two points, or an x that does not rise.
        """
        if len(xs) != len(ys) or len(xs) < 2:
            raise ValueError(f"a curve needs two or more points, not {len(xs)} and {len(ys)}")
        self.xs = tuple(float(x) for x in xs)
        self.ys = tuple(float(y) for y in ys)
        points = list(zip(self.xs, self.ys, strict=True))
        if any(b <= a for (a, _), (b, _) in pairwise(points)):
            raise ValueError(f"a curve's x must rise: {self.xs}")
        inner = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(points)]
        self.slopes = (*inner, inner[-1] if end_slope is None else float(end_slope))
        self._arrays = np.asarray(self.xs), np.asarray(self.ys), np.asarray(self.slopes)

    def at(self, x: float) -> float:
        """The value at `x`."""
        i = bisect_right(self.xs, x) - 1
        if i < 0:
            i = 0
        return self.ys[i] + (x - self.xs[i]) * self.slopes[i]

    def along(self, x: int, step: int, count: int) -> list[float]:
        """The values at x, x + step, x + 2·step, …, `count` of them; `step` above 0."""
        xs, ys, slopes = self.xs, self.ys, self.slopes
        i = max(bisect_right(xs, x) - 1, 0)
        last = len(xs) - 1
        values: list[float] = []
        end = x + step * count
        while True:
            x0, y0, slope = xs[i], ys[i], slopes[i]
            upto = end if i == last or end <= xs[i + 1] else min(end, ceil(xs[i + 1]))
            values += [y0 + (at - x0) * slope for at in range(x, upto, step)]
            x += -(-(upto - x) // step) * step
            if x >= end:
                return values
            while i < last and x >= xs[i + 1]:
                i += 1

    def many(self, x: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
        """The values at `x`, same shape."""
        xs, ys, slopes = self._arrays
        i = np.maximum(np.searchsorted(xs, x, side="right") - 1, 0)
        value: NDArray[np.float64] = ys[i] + (x - xs[i]) * slopes[i]
        return value
