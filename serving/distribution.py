"""Figures of a distribution given as values and how often each occurs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, eq=False)
class Distribution:
    """Values in rising order with their counts; every figure is that of the expanded sample.

    So `percentile` equals `numpy.percentile(numpy.repeat(values, counts), q)`, linear, to the last
    bit, and `std` has ddof 0; only the memory of the expansion is never used.
    """

    values: NDArray[np.float64]
    """Strictly rising, finite, shape [values]."""
    ends: NDArray[np.int64]
    """Running sum of the counts, shape [values]: value i takes places ends[i-1] to ends[i] - 1."""

    @classmethod
    def of(cls, values: ArrayLike, counts: ArrayLike | None = None) -> Distribution:
        """Sort `values`; undefined ones (NaN) and those counted 0 times are left out.

        Equal ones become one, so that the same sample gives the same figures to the last bit in
        whatever order and pieces it is given.

        Args:
            values: any order, shape [n].
            counts: whole numbers of 0 or more, shape [n]; 1 each if left out.
        """
        v = np.asarray(values, np.float64)
        c = None if counts is None else np.asarray(counts, np.int64)
        keep = ~np.isnan(v) if c is None else ~np.isnan(v) & (c > 0)
        if not keep.all():
            v, c = v[keep], None if c is None else c[keep]
        if c is None:
            v, ends = np.sort(v), np.arange(1, len(v) + 1, dtype=np.int64)
        else:
            order = np.argsort(v)
            v, ends = v[order], c[order]
            del order, c
            np.cumsum(ends, out=ends)
        last = np.append(v[1:] != v[:-1], True)[: len(v)]
        return cls(v, ends) if last.all() else cls(v[last], ends[last])

    def __len__(self) -> int:
        """Size of the expanded sample."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each value occurs, shape [values]."""
        return np.diff(self.ends, prepend=0)

    def mean(self) -> float | None:
        """The mean, or None of nothing."""
        # not a dot product, whose last bits depend on how many threads BLAS has
        return float(np.sum(self.values * self.counts)) / len(self) if len(self) else None

    def std(self) -> float | None:
        """The standard deviation with ddof 0, or None of nothing."""
        mean = self.mean()
        if mean is None:
            return None
        squares = (self.values - mean) ** 2
        return math.sqrt(float(np.sum(squares * self.counts)) / len(self))

    def percentile(self, q: float) -> float | None:
        """The `q`-th percentile (0 to 100) by linear interpolation, or None of nothing."""
        if not len(self):
            return None
        at = (q / 100) * (len(self) - 1)
        low = math.floor(at)
        a, b = self._at(low), self._at(min(low + 1, len(self) - 1))
        # numpy's own two-sided interpolation, so that the last bit agrees with it
        t = at - low
        return a + (b - a) * t if t < 0.5 else b - (b - a) * (1 - t)

    def _at(self, place: int) -> float:
        """The value at `place` (from 0) of the expanded sample."""
        return float(self.values[np.searchsorted(self.ends, place, side="right")])
