"""Arrival processes: gaps of unit mean, and rates that change over time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Gaps = Callable[[int, Generator], NDArray[np.float64]]
"""Draws so many gaps of mean 1."""


def constant_gaps(n: int, rng: Generator) -> NDArray[np.float64]:
    """Gaps that are all 1."""
    return np.ones(n)


def poisson_gaps(n: int, rng: Generator) -> NDArray[np.float64]:
    """Exponential gaps: a Poisson process."""
    return rng.exponential(1.0, n)


def gamma_gaps(shape: float) -> Gaps:
    """Gamma gaps; their CV is 1 / √shape."""
    return lambda n, rng: rng.gamma(shape, 1 / shape, n)


def weibull_gaps(shape: float) -> Gaps:
    """Weibull gaps; bursty below shape 1."""
    mean = math.gamma(1 + 1 / shape)
    return lambda n, rng: rng.weibull(shape, n) / mean


def weibull_shape(cv: float) -> float:
    """The shape k whose gaps have the coefficient of variation `cv`, by bisection.

    CV² = Γ(1 + 2/k) / Γ(1 + 1/k)² − 1, which falls in k.
    """
    low, high = 0.1, 100.0
    for _ in range(60):
        k = math.sqrt(low * high)
        square = math.exp(math.lgamma(1 + 2 / k) - 2 * math.lgamma(1 + 1 / k)) - 1
        low, high = (k, high) if square > cv * cv else (low, k)
    return math.sqrt(low * high)


def renewal(gaps: Gaps, rate: float, end_s: float, rng: Generator) -> NDArray[np.float64]:
    """Arrival times from 0 to before `end_s`: the first at 0, then gaps of mean 1 / rate."""
    parts = [np.zeros(1)]
    last = 0.0
    while last < end_s:
        n = int((end_s - last) * rate * 1.05) + 16
        times = last + np.cumsum(gaps(n, rng)) / rate
        parts.append(times)
        last = float(times[-1])
    times = np.concatenate(parts)
    return times[times < end_s]


def warped(
    edges_s: NDArray[np.float64], expected: NDArray[np.float64], rng: Generator
) -> NDArray[np.float64]:
    """A Poisson process whose rate changes: `expected` arrivals (cumulative) by each edge.

    Arrivals of a unit Poisson process are moved through the inverse of the cumulative rate, which
    is linear between edges.
    """
    n = rng.poisson(expected[-1])
    times: NDArray[np.float64] = np.interp(
        np.sort(rng.uniform(0, expected[-1], n)), expected, edges_s
    )
    return times


def on_off(
    on_s: float, off_s: float, rate: float, end_s: float, rng: Generator
) -> NDArray[np.float64]:
    """Poisson arrivals in exponentially long on-periods, none in off-periods; `rate` on average."""
    cycles = int(end_s / (on_s + off_s) * 1.2) + 16
    lengths = np.empty(2 * cycles)
    edges = np.zeros(1)
    while edges[-1] < end_s:
        lengths[0::2] = rng.exponential(on_s, cycles)
        lengths[1::2] = rng.exponential(off_s, cycles)
        edges = np.concatenate([edges, edges[-1] + np.cumsum(lengths)])
    on = np.diff(edges) * np.tile([1.0, 0.0], len(edges) // 2)
    expected = np.concatenate([[0.0], np.cumsum(on)]) * rate * (on_s + off_s) / on_s
    times = warped(edges, expected, rng)
    return times[times < end_s]


def diurnal(
    peak: float, period_s: float, rate: float, end_s: float, rng: Generator
) -> NDArray[np.float64]:
    """Poisson arrivals at rate × (1 + (peak − 1) sin(2πt / period)); `peak` is peak over mean."""
    edges = np.linspace(0, end_s, max(2, int(end_s / period_s * 2000)))
    phase = 2 * np.pi * edges / period_s
    expected = rate * (edges + (peak - 1) * period_s / (2 * np.pi) * (1 - np.cos(phase)))
    return warped(edges, expected, rng)


def by_counts(
    counts: NDArray[np.int64], window_s: float, span_s: float, gaps: Gaps, rng: Generator
) -> NDArray[np.float64]:
    """Exactly `counts` arrivals in consecutive windows; within one, gaps scaled to fill it.

    The last window ends at `span_s`.
    """
    parts = [np.zeros(0)]
    for index, n in enumerate(counts):
        if n:
            start = index * window_s
            ends = np.cumsum(gaps(int(n) + 1, rng))
            # Start anywhere within the first gap, or every window would begin with a whole one.
            ends -= rng.random() * ends[0]
            parts.append(start + ends[:-1] / ends[-1] * min(window_s, span_s - start))
    return np.concatenate(parts)
