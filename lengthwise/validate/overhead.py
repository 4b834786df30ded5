"""The host's share of a step, fitted on one measured run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lengthwise.config import RunConfig
from lengthwise.validate.compare import Comparison, compare
from lengthwise.validate.measured import Measured, MeasuredError
from lengthwise.validate.predict import predict

FINE_US = 0.25
"""How finely the overhead is found, µs a layer."""
MOST_US = 4096.0


@dataclass(frozen=True)
class Halves:
    """The overhead from the first half of a run's requests, and the errors of both halves."""

    overhead_us: float
    first: Comparison
    second: Comparison


@dataclass(frozen=True)
class Overhead:
    """The overhead of one run, and how well half of it predicts the other half."""

    run: str
    us_per_layer: float
    halves: Halves | None


def fit_overhead(
    measured: Measured, config: RunConfig, rows: NDArray[np.bool_] | None = None
) -> float:
    """The overhead a layer, µs, at which the mean E2E of the run is as it was measured.

    Found by halving the interval, since the mean rises with the overhead; below 0 where the steps
    are too slow without any.

    Args:
        measured: the run.
        config: how it is simulated.
        rows: the requests that count, shape [requests]; None: all.

    Raises:
        MeasuredError: no overhead makes up for what is missing, or for what is too much.
    """
    wanted = measured.requests["e2e_s"].to_numpy(np.float64)
    kept = ~np.isnan(wanted) if rows is None else ~np.isnan(wanted) & rows

    def short(overhead: float) -> bool:
        record = predict(measured, config, overhead).record
        found = record.requests["e2e_s"].to_numpy(np.float64)
        both = kept & ~np.isnan(found)
        if not both.any():
            raise MeasuredError(f"{measured.name}: no request to fit the overhead on")
        return float(found[both].sum()) < float(wanted[both].sum())

    low, high = (0.0, 8.0) if short(0.0) else (-8.0, 0.0)
    while not short(low):
        low, high = 2 * low, low
    while short(high):
        low, high = high, 2 * high
        if high > MOST_US:
            raise MeasuredError(
                f"{measured.name}: an overhead of {low:g} µs a layer does not make up for what "
                "the steps lack; is it the right model, hardware and cost?"
            )
    while high - low > FINE_US:
        middle = (low + high) / 2
        low, high = (middle, high) if short(middle) else (low, middle)
    return (low + high) / 2


def overhead_of(measured: Measured, config: RunConfig, warmup: int = 0) -> Overhead:
    """Fit the overhead on a run, and on its first half alone to see it predict the second.

    The first `warmup` requests count for nothing.
    """
    n = len(measured)
    at = np.arange(n)
    behind = at >= warmup
    whole = fit_overhead(measured, config, behind)
    if n - warmup < 4:
        return Overhead(measured.name, whole, None)
    first, second = behind & (at < (n + warmup) // 2), at >= (n + warmup) // 2
    half = fit_overhead(measured, config, first)
    record = predict(measured, config, half).record
    halves = Halves(half, compare(measured, record, first), compare(measured, record, second))
    return Overhead(measured.name, whole, halves)
