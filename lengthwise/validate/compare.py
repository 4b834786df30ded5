"""The figures of a measured run and of its prediction, and how far apart they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lengthwise.validate.measured import Measured, queue_depth
from serving.distribution import Distribution
from serving.record import Record

FIGURES: dict[str, Callable[[Distribution], float | None]] = {
    "mean": Distribution.mean,
    "p50": lambda d: d.percentile(50),
    "p90": lambda d: d.percentile(90),
    "p99": lambda d: d.percentile(99),
}
TIMES = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s"}
"""Latencies that a request has, and their columns."""
QUANTITIES = ("ttft", "tpot", "itl", "e2e", "throughput")

Figures = Mapping[str, Mapping[str, float | None]]
"""By quantity and figure: latencies in s, throughput (a mean only) in output tokens per s."""


@dataclass(frozen=True)
class Comparison:
    """Some requests of a run, measured and predicted."""

    requests: int
    left_out: int
    """Requests that ended on one side only."""
    measured: Figures
    predicted: Figures
    wape: Mapping[str, float | None]
    """Σ |predicted − measured| / Σ measured over requests, by latency."""

    @property
    def error(self) -> Figures:
        """predicted / measured − 1; None where either is undefined."""
        return {
            name: {f: _ratio(self.predicted[name][f], m) for f, m in figures.items()}
            for name, figures in self.measured.items()
        }


def compare(
    measured: Measured, predicted: Record, rows: NDArray[np.bool_] | None = None
) -> Comparison:
    """Compare the requests `rows` (shape [requests]; None: all) that ended on both sides.

    Gaps between tokens are known of whole runs only: with `rows` they are None.
    """
    mine, theirs = measured.requests, predicted.requests
    done = ~np.isnan(mine["e2e_s"].to_numpy()), ~np.isnan(theirs["e2e_s"].to_numpy())
    wanted = np.ones(len(mine), bool) if rows is None else rows
    both = done[0] & done[1] & wanted
    a, b = mine[both], theirs[both]
    itl = (measured.itl, predicted.latencies["itl"]) if rows is None else (None, None)
    return Comparison(
        int(both.sum()),
        int(((done[0] ^ done[1]) & wanted).sum()),
        _figures(a, itl[0]),
        _figures(b, itl[1]),
        {name: wape(a[column], b[column]) for name, column in TIMES.items()},
    )


def _figures(requests: pd.DataFrame, itl: Distribution | None) -> Figures:
    samples = {name: Distribution.of(requests[column]) for name, column in TIMES.items()}
    nothing = dict.fromkeys(FIGURES)
    found: dict[str, Mapping[str, float | None]] = {
        name: {f: take(sample) for f, take in FIGURES.items()} for name, sample in samples.items()
    }
    found["itl"] = nothing if itl is None else {f: take(itl) for f, take in FIGURES.items()}
    found["throughput"] = nothing | {"mean": _throughput(requests)}
    return {name: found[name] for name in QUANTITIES}


def _throughput(requests: pd.DataFrame) -> float | None:
    """Output tokens per second from the first arrival to the last end."""
    if not len(requests):
        return None
    end = float((requests["arrival_s"] + requests["e2e_s"]).max())
    return _over(float(requests["output_tokens"].sum()), end - float(requests["arrival_s"].min()))


def wape(measured: pd.Series[float], predicted: pd.Series[float]) -> float | None:
    """Σ |predicted − measured| / Σ measured over requests that have both; None of nothing."""
    m, p = measured.to_numpy(np.float64), predicted.to_numpy(np.float64)
    both = ~np.isnan(m) & ~np.isnan(p)
    return _over(float(np.abs(p - m)[both].sum()), float(m[both].sum()))


def light(measured: Measured) -> NDArray[np.bool_]:
    """Which requests met an empty queue, shape [requests]."""
    empty: NDArray[np.bool_] = queue_depth(measured.requests) == 0
    return empty


def peer_wape(measured: Measured, rows: NDArray[np.bool_]) -> dict[str, float | None] | None:
    """The same error of the other simulator whose prediction lies beside the run."""
    if measured.peer is None:
        return None
    return {
        name: wape(measured.requests[column][rows], measured.peer[column][rows])
        for name, column in TIMES.items()
    }


def _ratio(predicted: float | None, measured: float | None) -> float | None:
    if predicted is None or not measured:
        return None
    return predicted / measured - 1


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
