"""One page of four plots of a trace: rate, lengths, prompt against output, burstiness."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from traces.describe import counts, dispersion, round_window, spearman
from traces.errors import TraceError
from traces.trace import Trace

BLUE, ORANGE, GREY = "#1f6fb4", "#d9730d", "#8a8a8a"


def plot(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Save the page to `path` (PNG, PDF or SVG by its extension).

    Raises:
        TraceError: the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5))
    figure.subplots_adjust(0.075, 0.07, 0.98, 0.90, wspace=0.2, hspace=0.3)
    for axis, draw in zip(axes.flat, (_rate, _lengths, _joint, _bursts), strict=True):
        draw(axis, trace)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{trace.name}: {len(trace):,} requests in {_time(trace.span_s)}")
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise TraceError(f"{os.fspath(path)}: the plots cannot be saved ({error}).") from error
    finally:
        plt.close(figure)


def _rate(axis: Any, trace: Trace) -> None:
    """Requests a second over time."""
    axis.set_title("Arrival rate", loc="left")
    axis.set_ylabel("requests/s")
    if not trace.span_s:
        _empty(axis, "all requests arrive at once")
        return
    window = round_window(trace.span_s)
    number = counts(trace.arrival_s, window)
    unit, name = (3600.0, "hours") if trace.span_s > 3 * 3600 else (1.0, "s")
    if 600 < trace.span_s <= 3 * 3600:
        unit, name = 60.0, "minutes"
    if len(number):
        edges = np.arange(len(number) + 1) * window / unit
        axis.stairs(number / window, edges, fill=True, color=BLUE, alpha=0.25)
        axis.stairs(number / window, edges, color=BLUE, baseline=None)
    mean = (len(trace) - 1) / trace.span_s
    axis.axhline(mean, color=GREY, linewidth=1, linestyle="--")
    axis.set_title(f"dashed: mean {mean:.3g}/s", loc="right", fontsize=9, color="#555555")
    axis.set_ylim(bottom=0)
    axis.set_xlim(0, trace.span_s / unit)
    axis.set_xlabel(f"time ({name}), windows of {_time(window)}")


def _lengths(axis: Any, trace: Trace) -> None:
    """Cumulative distributions of prompt and output lengths."""
    axis.set_title("Lengths", loc="left")
    for name, tokens, color in (
        ("prompt", trace.prompt_tokens, BLUE),
        ("output", trace.output_tokens, ORANGE),
    ):
        values, number = np.unique(tokens, return_counts=True)
        share = np.cumsum(number) / len(tokens)
        median = float(np.median(tokens))
        axis.step(
            np.concatenate([[max(values[0], 0.5)], np.maximum(values, 0.5)]),
            np.concatenate([[0], share]),
            where="post",
            color=color,
            label=f"{name}: median {median:,.0f}, p99 {np.percentile(tokens, 99):,.0f}",
        )
    axis.set_xscale("log")
    axis.set_xlabel("tokens")
    axis.set_ylabel("share of requests at or below")
    # Room above 1 for the legend, which no curve then crosses.
    axis.set_ylim(0, 1.24)
    axis.set_yticks(np.linspace(0, 1, 6))
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, loc="upper left", fontsize=9)
    _plain_ticks(axis.xaxis)


def _joint(axis: Any, trace: Trace) -> None:
    """Prompt against output lengths, as density."""
    from matplotlib.ticker import FuncFormatter

    rho = spearman(trace.prompt_tokens, trace.output_tokens)
    shown = "undefined" if rho is None else f"{round(rho, 2) + 0:.2f}"
    axis.set_title(f"Prompt and output (rank correlation {shown})", loc="left")
    prompt = np.maximum(trace.prompt_tokens, 0.5)
    output = np.maximum(trace.output_tokens, 0.5)
    if len(trace) <= 2000:
        axis.scatter(prompt, output, s=6, alpha=0.4, color=BLUE, linewidths=0)
        axis.set_xscale("log")
        axis.set_yscale("log")
    else:
        cells = axis.hexbin(
            prompt,
            output,
            xscale="log",
            yscale="log",
            gridsize=45,
            bins="log",
            mincnt=1,
            cmap="Blues",
            linewidths=0.1,
        )
        bar = axis.figure.colorbar(cells, ax=axis, label="requests", pad=0.01)
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_xlabel("prompt tokens")
    axis.set_ylabel("output tokens")
    _plain_ticks(axis.xaxis)
    _plain_ticks(axis.yaxis)


def _bursts(axis: Any, trace: Trace) -> None:
    """Index of dispersion by window length."""
    axis.set_title("Burstiness", loc="left")
    axis.set_ylabel("variance / mean of counts")
    if len(trace) < 2 or not trace.span_s:
        _empty(axis, "all requests arrive at once")
        return
    windows = np.geomspace(min(0.1, trace.span_s / 20), trace.span_s / 10, 25)
    values = [dispersion(trace.arrival_s, float(w)) for w in windows]
    points = [(w, v) for w, v in zip(windows, values, strict=True) if v]
    if not points:
        _empty(axis, "too few requests")
        return
    x, y = zip(*points, strict=True)
    axis.plot(x, y, color=BLUE, marker="o", markersize=3)
    axis.axhline(1, color=GREY, linewidth=1, linestyle="--")
    axis.set_title("dashed: Poisson", loc="right", fontsize=9, color="#555555")
    axis.set_xscale("log")
    axis.set_yscale("log")
    low, high = min(*y, 1), max(*y, 1)
    axis.set_ylim(low / 1.6, high * 1.6)
    axis.set_xlabel("window (s)")
    axis.grid(alpha=0.25)
    _plain_ticks(axis.xaxis)
    _plain_ticks(axis.yaxis)


def _empty(axis: Any, why: str) -> None:
    axis.text(0.5, 0.5, why, transform=axis.transAxes, ha="center", color=GREY)
    axis.set_xticks([])
    axis.set_yticks([])


def _plain_ticks(axis: Any) -> None:
    """1,000 rather than 10³; labels at the decades only, more where there is but one decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    low, high = axis.get_view_interval()
    if high / max(low, 1e-12) < 20:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_formatter(NullFormatter())


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 3 * 3600:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h" if seconds < 3 * 86400 else f"{seconds / 86400:.3g} days"
