"""Measured against predicted: the points drawn are the requests, and what is said of them holds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from lengthwise.plots_agreement import measured_against_predicted
from tests.report.test_plots import check_layout


def table(count: int, factor: float = 1.0) -> pd.DataFrame:
    draw = np.random.default_rng(2)
    ttft, tpot = draw.lognormal(-2, 1.3, count), 0.03 * draw.lognormal(0, 0.1, count)
    return pd.DataFrame(
        {
            "request": range(count),
            "ttft_s": factor * ttft,
            "tpot_s": factor * tpot,
            "e2e_s": factor * (ttft + 100 * tpot),
        }
    )


def points(figure: Figure) -> list[np.ndarray]:
    found = []
    for ax in figure.axes[:3]:
        scatters = [c for c in ax.collections if len(np.asarray(c.get_offsets())) > 1]
        found += [np.asarray(c.get_offsets()) for c in scatters]
    return found


@pytest.mark.parametrize("width", [5.5, 8.0])
def test_a_point_a_request_and_nothing_clipped(width: float) -> None:
    measured, predicted = table(150), table(150, 1.05)
    figure = measured_against_predicted(measured, predicted, width)
    check_layout(figure)
    for seen, column in zip(points(figure), ("ttft_s", "tpot_s", "e2e_s"), strict=True):
        assert np.array_equal(seen, np.stack([measured[column], predicted[column]], axis=1))
    for ax in figure.axes[:3]:
        assert [t.get_text() for t in ax.texts] == [
            "150 requests\nmedian error 5.0%\n100% within 10%"
        ]


def test_requests_are_matched_by_number_and_what_is_missing_is_said() -> None:
    measured, predicted = table(60)[:40].copy(), table(60, 1.2).iloc[::-1]
    measured.loc[3, "tpot_s"] = np.nan
    measured.loc[4, "ttft_s"] = 0.0
    figure = measured_against_predicted(measured, predicted)
    check_layout(figure)
    said = [ax.texts[0].get_text() for ax in figure.axes[:3]]
    assert said[0] == "39 requests\nmedian error 20.0%\n0% within 10%\n1 at 0, not shown"
    assert said[1].startswith("39 requests\n")
    assert said[2].startswith("40 requests\n")
    assert all(np.allclose(p[:, 1], 1.2 * p[:, 0]) for p in points(figure))


def test_nothing_to_compare_and_many() -> None:
    check_layout(measured_against_predicted(table(5)[:0], table(5)))
    figure = measured_against_predicted(table(3000), table(3000, 1.001))
    check_layout(figure)
    assert len(points(figure)[0]) == 3000
