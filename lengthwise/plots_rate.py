"""Latency against the rate of arrivals: where a policy stops keeping up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lengthwise.plots import WIDTH, legend, plain_log, say_nothing
from lengthwise.style import Look, looks, new_figure, styled
from serving.record import Record

_COLUMNS = {"ttft": "TTFT", "tpot": "TPOT"}
_ROWS = {"median": "median", "p99": "99th percentile"}


def arrival_rate(record: Record) -> float:
    """Requests that arrive per second, NaN where all arrive at once.

    The gaps between arrivals count, one fewer than there are requests.
    """
    arrivals = record.requests["arrival_s"].to_numpy(np.float64)
    span = float(np.ptp(arrivals)) if len(arrivals) else 0.0
    return (len(arrivals) - 1) / span if span else np.nan


def against_rate(runs: Mapping[str, Sequence[Record]], width: float = WIDTH) -> Figure:
    """Median and p99 of TTFT and TPOT against the rate of arrivals, a curve a policy.

    Beyond the rate that a policy sustains its TTFT is a queue that grows with the trace.

    Args:
        runs: of each policy, runs of one workload at several rates, in any order.
        width: in inches.
    """
    with styled():
        figure = new_figure(width, 0.42 * width + 1.9)
        grid = figure.subplots(2, 2, sharex=True, sharey="col")
        look = looks(runs)
        for row, (figure_name, said) in enumerate(_ROWS.items()):
            for column, (name, title) in enumerate(_COLUMNS.items()):
                ax = grid[row, column]
                key = f"{figure_name}_{name}_ms"
                _curves(ax, {run: _points(records, key) for run, records in runs.items()}, look)
                ax.set_title(f"{title}, {said}")
        for ax in grid[1]:
            ax.set_xlabel("arrivals (requests/s)")
            ax.set_xlim(0)
        for ax in grid[:, 0]:
            ax.set_ylabel("seconds")
        legend(figure, runs, width)
    return figure


def _points(records: Sequence[Record], key: str) -> list[tuple[float, float]]:
    """Rate (requests/s) and latency (s) of the runs that have both, by rate."""
    found = [(arrival_rate(r), r.summary[key]) for r in records]
    return sorted((rate, ms / 1e3) for rate, ms in found if ms is not None and not np.isnan(rate))


def _curves(
    ax: Axes, curves: Mapping[str, list[tuple[float, float]]], look: Mapping[str, Look]
) -> None:
    """A line a run over a logarithmic axis of seconds; a marker where it was run."""
    for run, points in curves.items():
        x, y = np.array(points).reshape(-1, 2).T
        ax.plot(x, y, color=look[run].colour, ls=look[run].dash, marker="o", ms=3)
    if any(latency > 0 for points in curves.values() for _, latency in points):
        ax.set_yscale("log")
        plain_log(ax.yaxis)
    else:
        say_nothing(ax)
