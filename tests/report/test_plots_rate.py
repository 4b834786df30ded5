"""Latency against rate: every run is a point, at its own rate of arrivals and its own figure."""

from __future__ import annotations

import numpy as np
import pytest

import lengthwise
from lengthwise.plots_rate import against_rate, arrival_rate
from serving.record import Record
from tests.report.test_plots import check_layout
from tests.report.toy import toy
from traces import Trace

HOW = {"cost": "fixed", "step_ms": 10.0, "max_num_seqs": 4}


def run(policy: str, rate: float) -> Record:
    """Twenty equal requests, `rate` a second."""
    trace = Trace(np.arange(20) / rate, np.full(20, 100), np.full(20, 10))
    return lengthwise.replay(trace, policy, **HOW)


def test_rate_of_arrivals() -> None:
    assert arrival_rate(run("continuous", 5)) == pytest.approx(5)
    at_once = toy(1).record
    at_once.requests["arrival_s"] = 2.0
    assert np.isnan(arrival_rate(at_once))


@pytest.mark.parametrize("width", [5.5, 8.0])
def test_a_point_a_run(width: float) -> None:
    rates = (40.0, 5.0, 20.0)
    runs = {p: [run(p, rate) for rate in rates] for p in ("dynamic-padding", "continuous")}
    figure = against_rate(runs, width)
    check_layout(figure)
    keys = ("median_ttft_ms", "median_tpot_ms", "p99_ttft_ms", "p99_tpot_ms")
    for ax, key in zip(figure.axes, keys, strict=True):
        for line, records in zip(ax.get_lines(), runs.values(), strict=True):
            by_rate = [records[1], records[2], records[0]]
            assert list(np.asarray(line.get_xdata())) == pytest.approx([5, 20, 40])
            assert list(np.asarray(line.get_ydata())) == pytest.approx(
                [record.summary[key] / 1e3 for record in by_rate]
            )


def test_runs_without_a_rate_or_a_figure_are_no_points() -> None:
    figure = against_rate({"static": [], "continuous": [toy(1, requests=1).record]})
    check_layout(figure)
