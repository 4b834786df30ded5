"""vLLM's and SGLang's schedulers under their own defaults: a trace at several rates.

    python benchmarks/prefill_first.py TRACE [--rates 1,2,3] [--picture FILE.png]

Draws what docs/sglang.md shows, and prints the table for the rates that are whole numbers.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from lengthwise.api import compare, load_trace, replay
from lengthwise.style import looks, new_figure, save, styled

POLICIES = ("chunked-prefill", "sglang")
FIGURES = {
    "TTFT p50": "median_ttft_ms",
    "TTFT mean": "mean_ttft_ms",
    "TTFT p99": "p99_ttft_ms",
    "ITL p50": "median_itl_ms",
    "ITL p99": "p99_itl_ms",
    "TPOT mean": "mean_tpot_ms",
    "E2E mean": "mean_e2el_ms",
}
PANELS = {
    "Time to first token (TTFT)": ("median_ttft_ms", "p99_ttft_ms"),
    "Gap between tokens (ITL)": ("median_itl_ms", "p99_itl_ms"),
}

Summaries = dict[float, dict[str, dict[str, Any]]]
"""By times the trace's rate, and by policy."""


MARKERS = {"chunked-prefill": "o", "sglang": "s"}
"""A policy's points, which colour alone should not tell apart."""


def measure(trace: str, scale: float) -> dict[str, dict[str, Any]]:
    """The figures of each policy at so many times the trace's rate."""
    records = compare(trace, POLICIES, like="own", rate_scale=scale)
    records["chunked-prefill, not asynchronous"] = replay(
        trace, like="vllm", async_scheduling=False, rate_scale=scale
    )
    return {name: record.summary for name, record in records.items()}


def table(found: Summaries, rate: float) -> str:
    """The figures as a Markdown table, ms; `rate` is the trace's own, requests/s."""
    lines = [f"| requests/s | policy | {' | '.join(FIGURES)} |", "|---" * (2 + len(FIGURES)) + "|"]
    for scale, summaries in found.items():
        if scale == int(scale):
            for name, summary in summaries.items():
                figures = " | ".join(f"{summary[key]:,.1f}" for key in FIGURES.values())
                lines.append(f"| {scale * rate:.1f} | `{name}` | {figures} |")
    return "\n".join(lines)


def picture(found: Summaries, rate: float) -> Figure:
    """Median and p99 of TTFT and of ITL over the rate."""
    with styled():
        figure = new_figure(8.0, 3.4)
        for ax, (title, keys) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
            _panel(ax, found, rate, keys)
            ax.set_title(title)
        look = looks(POLICIES)
        lines = [
            Line2D([], [], color=look[p].colour, marker=MARKERS[p], ms=4, label=p) for p in POLICIES
        ]
        lines += [
            Line2D([], [], color="black", ls=dash, label=label)
            for label, dash in (("p99", "solid"), ("median", "dotted"))
        ]
        figure.legend(handles=lines, loc="outside upper center", ncols=4, handlelength=3)
    return figure


def _panel(ax: Axes, found: Summaries, rate: float, keys: tuple[str, str]) -> None:
    look = looks(POLICIES)
    for policy in POLICIES:
        for key, dash in zip(keys, ("dotted", "solid"), strict=True):
            values = [summaries[policy][key] for summaries in found.values()]
            places = [scale * rate for scale in found]
            ax.plot(
                places, values, color=look[policy].colour, ls=dash, marker=MARKERS[policy], ms=4
            )
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
    ax.set_xlabel("requests/s")
    ax.set_ylabel("ms")
    ax.set_xlim(0)


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("trace")
    parser.add_argument("--rates", default="1,2,3", help="times the trace's own")
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    trace = load_trace(arguments.trace)
    rate = (len(trace) - 1) / trace.span_s
    scales = [float(part) for part in arguments.rates.split(",")]
    found = {scale: measure(arguments.trace, scale) for scale in scales}
    print(table(found, rate))
    if arguments.picture is not None:
        save(picture(found, rate), arguments.picture.with_suffix(""), ("png",))


if __name__ == "__main__":
    main()
