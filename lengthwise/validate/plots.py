"""Pictures of a validation: the requests, the distributions, and the error as queues grow."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from lengthwise.plots import WIDTH, plain_log, say_nothing
from lengthwise.plots_agreement import measured_against_predicted
from lengthwise.style import BLUE, GREY, VERMILLION, new_figure, styled
from lengthwise.validate.compare import TIMES
from lengthwise.validate.measured import queue_depth
from lengthwise.validate.report import Report

TITLES = {
    "ttft": "First token (TTFT)",
    "tpot": "Output token (TPOT)",
    "e2e": "Whole request (E2E)",
}


def agreement(report: Report, width: float = WIDTH) -> Figure:
    """Measured against predicted, a point a request, with the diagonal."""
    predicted = report.prediction.record.requests
    return measured_against_predicted(report.measured.requests, predicted, width)


def distributions(report: Report, width: float = WIDTH) -> Figure:
    """The share of requests that took at most so long, measured and predicted overlaid."""
    mine, theirs = report.measured.requests, report.prediction.record.requests
    with styled():
        figure = new_figure(width, 0.3 * width + 0.6)
        axes = figure.subplots(1, 3, sharey=True)
        for ax, (name, column) in zip(axes, TIMES.items(), strict=True):
            drawn = False
            for label, table, colour, dash in (
                ("measured", mine, VERMILLION, "solid"),
                ("predicted", theirs, BLUE, (0, (4, 1.5))),
            ):
                x = np.sort(table[column].dropna().to_numpy(np.float64))
                x = x[x > 0]
                if len(x):
                    share = np.arange(1, len(x) + 1) / len(x)
                    ax.plot(x, share, color=colour, ls=dash, drawstyle="steps-post", label=label)
                    drawn = True
            ax.set_title(TITLES[name])
            if drawn:
                ax.set_xscale("log")
                plain_log(ax.xaxis)
            else:
                say_nothing(ax)
        axes[0].set_ylim(0, 1)
        axes[0].yaxis.set_major_formatter(PercentFormatter(1))
        axes[0].set_ylabel("share of requests")
        figure.supxlabel("seconds", size="medium")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


def error_by_depth(report: Report, width: float = WIDTH) -> Figure:
    """Each request's error over how many waited for a token when it arrived; the line: median."""
    mine, theirs = report.measured.requests, report.prediction.record.requests
    depth = queue_depth(mine)
    with styled():
        figure = new_figure(width, 0.3 * width + 0.5)
        axes = figure.subplots(1, 3)
        for ax, (name, column) in zip(axes, TIMES.items(), strict=True):
            m, p = mine[column].to_numpy(np.float64), theirs[column].to_numpy(np.float64)
            both = ~np.isnan(m) & ~np.isnan(p) & (m > 0)
            ax.set_title(TITLES[name])
            if not both.any():
                say_nothing(ax)
                continue
            error, at = p[both] / m[both] - 1, depth[both]
            ax.axhline(0, color="black", lw=0.8)
            ax.scatter(at, error, s=8, color=GREY, alpha=0.5, lw=0)
            centres, medians = _medians(at, error)
            ax.plot(centres, medians, color=BLUE, marker="o", ms=3)
            most = max(0.02, 1.25 * float(np.quantile(np.abs(error), 0.98)))
            ax.set_ylim(-most, most)
            hidden = int((np.abs(error) > most).sum())
            if hidden:
                ax.text(
                    0.98,
                    0.97,
                    f"{hidden} outside",
                    ha="right",
                    va="top",
                    fontsize=7.5,
                    transform=ax.transAxes,
                )
            ax.yaxis.set_major_formatter(PercentFormatter(1))
        axes[0].set_ylabel("predicted / measured − 1")
        figure.supxlabel("requests without a token yet at arrival", size="medium")
    return figure


def _medians(
    depth: np.ndarray, error: np.ndarray, groups: int = 8
) -> tuple[list[float], list[float]]:
    """The median error of groups of about equal size, by depth."""
    bounds = np.unique(np.quantile(depth, np.linspace(0, 1, groups + 1)))
    of = np.searchsorted(bounds[1:-1], depth, side="right")
    parts = [of == g for g in np.unique(of)]
    centres = [float(np.mean(depth[part])) for part in parts]
    return centres, [float(np.median(error[part])) for part in parts]


FIGURES_OF = {
    "agreement": agreement,
    "distributions": distributions,
    "error_by_depth": error_by_depth,
}
"""The plots that `validate` saves, by file name."""
