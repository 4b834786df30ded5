"""Measured against predicted: the same requests, run and simulated, a point each."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from lengthwise.levels import FloatArray
from lengthwise.plots import WIDTH, plain_log, say_nothing
from lengthwise.style import BLUE, PALE, new_figure, styled

BAND = 0.1
"""The grey band: predictions within so much of what was measured."""

_PANELS = {
    "ttft_s": "First token (TTFT)",
    "tpot_s": "Output token (TPOT)",
    "e2e_s": "Whole request (E2E)",
}
_MANY = 2000
"""From so many points on a vector file holds them as a picture."""


def measured_against_predicted(
    measured: pd.DataFrame, predicted: pd.DataFrame, width: float = WIDTH
) -> Figure:
    """TTFT, TPOT and E2E of each request, measured and predicted; perfect ones on the diagonal.

    Args:
        measured: a record's request table, or one that has its columns `request`, `ttft_s`,
            `tpot_s` and `e2e_s`; times in seconds, NaN where a request has none.
        predicted: the same of the simulated run.
        width: in inches.
    """
    pairs = measured.merge(predicted, on="request", suffixes=("_measured", "_predicted"))
    with styled():
        narrow = width < 7
        figure = new_figure(width, 0.94 * width if narrow else 0.33 * width + 0.65)
        shape = (2, 2) if narrow else (1, 3)
        axes = figure.subplots(*shape, squeeze=False).ravel()
        for ax, (column, title) in zip(axes, _PANELS.items(), strict=False):
            both = pairs[[f"{column}_measured", f"{column}_predicted"]].to_numpy(np.float64)
            _scatter(ax, both[~np.isnan(both).any(axis=1)])
            ax.set_title(title)
        handles = [
            Line2D([], [], color="black", lw=1.1, label="predicted = measured"),
            Patch(color=PALE, label=f"within {BAND:.0%}"),
            Line2D([], [], color=BLUE, marker="o", ms=4, lw=0, label="a request"),
        ]
        if narrow:
            axes[-1].axis("off")
            axes[-1].legend(handles=handles, loc="center")
        else:
            figure.legend(handles=handles, loc="outside upper center", ncols=3)
        figure.supxlabel("measured (s)", size="medium")
        figure.supylabel("predicted (s)", size="medium")
    return figure


def _scatter(ax: Axes, pairs: FloatArray) -> None:
    """A point for each pair [measured, predicted], the diagonal, and how far off they are."""
    ax.set_box_aspect(1)
    shown = pairs[(pairs > 0).all(axis=1)]
    if not len(shown):
        say_nothing(ax)
        return
    measured, predicted = shown.T
    low, high = shown.min() / 1.15, shown.max() * 1.15
    line = np.array([low, high])
    ax.fill_between(line, (1 - BAND) * line, (1 + BAND) * line, color=PALE, lw=0)
    ax.plot(line, line, color="black", lw=1.1)
    ax.scatter(
        measured,
        predicted,
        s=9,
        color=BLUE,
        alpha=max(0.15, min(0.7, 150 / len(shown))),
        lw=0,
        rasterized=len(shown) > _MANY,
    )
    ax.set(xlim=(low, high), ylim=(low, high))
    if high > 10 * low:
        ax.set(xscale="log", yscale="log")
        plain_log(ax.xaxis)
        plain_log(ax.yaxis)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.yaxis.set_major_locator(MaxNLocator(4))
    ax.text(0.04, 0.96, _said(pairs), va="top", fontsize=7.5, transform=ax.transAxes)


def _said(pairs: FloatArray) -> str:
    """How many requests, the median error, and how many predictions lie in the band."""
    measured, predicted = pairs[pairs[:, 0] > 0].T
    error = np.abs(predicted - measured) / measured
    lines = [
        f"{len(error):,} requests",
        f"median error {np.median(error):.1%}",
        f"{np.mean(error <= BAND):.0%} within {BAND:.0%}",
    ]
    zero = len(pairs) - (pairs > 0).all(axis=1).sum()
    return "\n".join([*lines, f"{zero:,} at 0, not shown"] if zero else lines)
