"""Plots of finished runs: functions that take records and return figures.

`width` is in inches everywhere: 8 for a screen or a notebook, 5.5 for a column of a printed page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import (
    EngFormatter,
    FuncFormatter,
    LogLocator,
    NullFormatter,
    PercentFormatter,
)

from lengthwise.levels import FloatArray, Level, edges, in_steps, span, waiting
from lengthwise.style import DECODE, HATCH, PREFILL, WASTE, looks, new_figure, styled
from serving.distribution import Distribution
from serving.record import Record

if TYPE_CHECKING:
    import pandas as pd

Records = Mapping[str, Record]
"""Runs by name, in the order in which they are shown."""

WIDTH = 8.0
INTERVALS = 400
"""At most so many points along an axis of time."""

_CURVES = {
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
    "itl": "Gap between tokens (ITL)",
    "e2el": "Whole request (E2E)",
}


def latency_cdfs(records: Records, width: float = WIDTH) -> Figure:
    """What share of requests (of gaps, for ITL) took at most so long; time is logarithmic."""
    with styled():
        figure = new_figure(width, 0.42 * width + 1.9)
        grid = figure.subplots(2, 2, sharey=True)
        for ax, (name, title) in zip(grid.flat, _CURVES.items(), strict=True):
            _cdf(ax, {run: record.latencies[name] for run, record in records.items()})
            ax.set_title(title)
        for ax in grid[1]:
            ax.set_xlabel("seconds")
        grid[0, 0].set_ylabel("share of requests")
        grid[1, 0].set_ylabel("share of gaps")
        legend(figure, records, width)
    return figure


def _cdf(ax: Axes, runs: Mapping[str, Distribution]) -> None:
    """One curve a run."""
    look = looks(runs)
    for run, sample in runs.items():
        if len(sample):
            x, y = _curve(sample)
            ax.plot(x, y, color=look[run].colour, ls=look[run].dash, drawstyle="steps-post")
    if any(len(sample) and sample.values[-1] > 0 for sample in runs.values()):
        ax.set_xscale("log")
        plain_log(ax.xaxis)
    else:
        say_nothing(ax)
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_formatter(PercentFormatter(1))


def _curve(sample: Distribution) -> tuple[FloatArray, FloatArray]:
    """The values and the share at or below each, thinned to some hundred points."""
    share = sample.ends / len(sample)
    wanted = np.searchsorted(share, np.linspace(0, 1, INTERVALS))
    rows = np.unique(np.append(np.minimum(wanted, len(share) - 1), 0))
    return sample.values[rows], share[rows]


def padding(records: Records, width: float = WIDTH) -> Figure:
    """Of the token slots and query-key pairs that were computed, how many were useful."""
    with styled():
        figure = new_figure(width, 1.5 + 2 * (0.28 * len(records) + 0.35))
        grid = figure.subplots(2, 2, sharey=True, sharex=True)
        uses = {name: record.folded.steps.efficiency for name, record in records.items()}
        for column, phase in enumerate(("prefill", "decode")):
            slots = {name: (u[phase].useful_slots, u[phase].slots) for name, u in uses.items()}
            pairs = {name: (u[phase].useful_pairs, u[phase].pairs) for name, u in uses.items()}
            colour = PREFILL if phase == "prefill" else DECODE
            _shares(grid[0, column], slots, colour)
            _shares(grid[1, column], pairs, colour)
            grid[0, column].set_title(f"{phase.capitalize()}: token slots")
            grid[1, column].set_title(f"{phase.capitalize()}: query-key pairs")
        figure.supxlabel("share of what was computed; at the right: wasted, of all", size="medium")
        figure.legend(
            handles=[
                Patch(facecolor=PREFILL, label="useful (prefill)"),
                Patch(facecolor=DECODE, label="useful (decode)"),
                Patch(facecolor=WASTE, hatch=HATCH, label="padding and finished rows"),
            ],
            loc="outside upper center",
            ncols=3,
        )
    return figure


def _shares(ax: Axes, parts: Mapping[str, tuple[int, int]], colour: str) -> None:
    """A bar a run: the useful share, the wasted one, and how much it was in all."""
    places = np.arange(len(parts))
    useful = np.array([part / whole if whole else 0.0 for part, whole in parts.values()])
    wasted = np.array(
        [1 - u if whole else 0.0 for u, (_, whole) in zip(useful, parts.values(), strict=True)]
    )
    ax.barh(places, useful, color=colour, height=0.72)
    ax.barh(places, wasted, left=useful, color=WASTE, hatch=HATCH, height=0.72)
    count = EngFormatter(sep="", places=1)
    for place, share, (_, whole) in zip(places.tolist(), wasted, parts.values(), strict=True):
        note = f"{100 * share:.1f}% of {count(whole)}" if whole else "none"
        ax.text(1.03, place, note, va="center", fontsize=7.5, transform=ax.get_yaxis_transform())
    ax.set_yticks(places, list(parts))
    ax.set_ylim(len(parts) - 0.4, -0.6)
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.grid(axis="y", visible=False)


def running(
    records: Records, window: tuple[float, float] | None = None, width: float = WIDTH
) -> Figure:
    """Requests in a seat over time, a panel a run: batches drain, a continuous one is refilled."""
    with styled():
        figure = new_figure(width, 0.8 + 0.8 * len(records))
        axes = _column(figure, len(records))
        window = window or span(dict(records))
        look = looks(records)
        for ax, (name, record) in zip(axes, records.items(), strict=True):
            steps = record.step_columns("start_s", "end_s", "running")
            level = in_steps(steps, steps["running"])
            _area(ax, edges(record, INTERVALS, window), level, look[name].colour)
            ax.set_title(name)
        figure.supylabel("requests running", size="medium")
        axes[-1].set_xlabel("time (s); pale: the most in an interval")
    return figure


def composition(
    record: Record, window: tuple[float, float] | None = None, width: float = WIDTH
) -> Figure:
    """What the steps computed over time, against the budget; decode once more, enlarged."""
    with styled():
        figure = new_figure(width, 3.9)
        axes = _column(figure, 2)
        bounds, steps = edges(record, INTERVALS, window), record.steps
        vain = {p: steps[f"{p}_slots"] - steps[f"{p}_tokens"] for p in ("prefill", "decode")}
        decode = ("decode tokens", steps["decode_tokens"], DECODE, "")
        prefill = ("prefill tokens", steps["prefill_tokens"], PREFILL, "")
        waste = "padding and finished rows"
        whole = (waste, vain["prefill"] + vain["decode"], WASTE, HATCH)
        budget = record.config.get("max_num_batched_tokens")
        if budget:
            axes[0].axhline(budget, color="black", lw=1.1, ls=(0, (5, 2)), label="token budget")
        _stack(axes[0], bounds, steps, [decode, prefill, whole])
        _stack(axes[1], bounds, steps, [decode, (waste, vain["decode"], WASTE, HATCH)])
        axes[0].set_title("Token slots a step")
        axes[1].set_title("Decode alone")
        axes[1].set_xlabel("time (s)")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4 if width > 7 else 2)
    return figure


def load(record: Record, window: tuple[float, float] | None = None, width: float = WIDTH) -> Figure:
    """The queue, the running requests and the KV cache over time; pale: most in an interval."""
    with styled():
        figure = new_figure(width, 4.6)
        axes = _column(figure, 3)
        bounds, steps = edges(record, INTERVALS, window), record.steps
        blocks = record.config.get("kv_blocks")
        kv = steps["kv_blocks_used"] / blocks if blocks else steps["kv_blocks_used"]
        _area(axes[0], bounds, waiting(record), WASTE)
        _area(axes[1], bounds, in_steps(steps, steps["running"]), DECODE)
        _area(axes[2], bounds, in_steps(steps, kv), PREFILL)
        if blocks:
            axes[2].yaxis.set_major_formatter(PercentFormatter(1))
            axes[2].set_ylim(0, 1)
        for ax, title in zip(
            axes,
            (
                "Requests waiting",
                "Requests running",
                "KV blocks in use" + (f" (of {blocks:,})" if blocks else ""),
            ),
            strict=True,
        ):
            ax.set_title(title)
        axes[-1].set_xlabel("time (s); pale: the most in an interval")
    return figure


# Pieces


def _column(figure: Figure, count: int) -> list[Axes]:
    """Panels above each other over one axis of time."""
    grid = figure.subplots(max(count, 1), 1, sharex=True, squeeze=False)
    return list(grid[:, 0])


def _stack(
    ax: Axes,
    bounds: FloatArray,
    steps: pd.DataFrame,
    parts: list[tuple[str, pd.Series[Any], str, str]],
) -> None:
    """Parts of a step on each other, each its mean over the time in which steps ran."""
    busy = in_steps(steps, np.ones(len(steps))).mean(bounds)
    floor = np.zeros(len(bounds) - 1)
    for label, values, colour, hatch in parts:
        if values.any():
            top = floor + in_steps(steps, values).mean(bounds) / np.where(busy > 0, busy, 1)
            _steps(ax, bounds, top, floor, colour=colour, hatch=hatch, label=label)
            floor = top
    _frame(ax, bounds)


def _area(ax: Axes, bounds: FloatArray, level: Level, colour: str) -> None:
    """A quantity over time as a filled area: its mean in each interval, and pale its most."""
    _steps(ax, bounds, level.peak(bounds), colour=colour, alpha=0.3)
    _steps(ax, bounds, level.mean(bounds), colour=colour, alpha=0.85)
    _frame(ax, bounds)


def _steps(
    ax: Axes,
    bounds: FloatArray,
    top: FloatArray,
    floor: FloatArray | None = None,
    *,
    colour: str,
    **look: Any,
) -> None:
    """Fill between two quantities that are constant in each interval (faster than `stairs`)."""
    low = np.zeros(len(top)) if floor is None else floor
    ax.fill_between(
        bounds,
        np.append(low, low[-1]),
        np.append(top, top[-1]),
        step="post",
        facecolor=colour,
        linewidth=0,
        **look,
    )


def _frame(ax: Axes, bounds: FloatArray) -> None:
    """The whole time and nothing below 0."""
    ax.set_xlim(bounds[0], bounds[-1])
    ax.set_ylim(0)
    ax.yaxis.set_major_formatter(_thousands())


def legend(figure: Figure, names: Iterable[str], width: float) -> None:
    """The names of the runs above the panels, in as many columns as fit."""
    look = looks(names)
    lines = [Line2D([], [], color=x.colour, ls=x.dash, label=n) for n, x in look.items()]
    figure.legend(
        handles=lines, loc="outside upper center", ncols=max(1, int(width / 1.9)), handlelength=3
    )


def plain_log(axis: Axis) -> None:
    """Plain numbers; the fewer powers of ten there are, the more between them."""
    low, high = axis.get_view_interval()
    ratio = high / low
    subs = (1, 1.5, 2, 3, 5, 7) if ratio < 4 else (1, 2, 5) if ratio < 500 else (1,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _thousands() -> FuncFormatter:
    return FuncFormatter(lambda x, _: f"{x:,.0f}" if x == int(x) else f"{x:g}")


def say_nothing(ax: Axes) -> None:
    """Instead of a panel's points, where there are none."""
    ax.text(0.5, 0.5, "no such figure in these runs", ha="center", transform=ax.transAxes)


FOR_COMPARISON: dict[str, Callable[..., Figure]] = {
    "latency": latency_cdfs,
    "padding": padding,
    "running": running,
}
"""The plots that `compare` saves, by file name; each takes runs by name, and `width`."""

FOR_ONE: dict[str, Callable[..., Figure]] = {"composition": composition, "load": load}
"""The plots of a single run, by file name; each takes a record, and `width`."""
