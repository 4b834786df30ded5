"""Predicted against measured on this machine: `make validate`, under six minutes on two cores.

The model `tiny` is profiled, then 150 requests run three times under each policy at 60% load. The
median of the three runs must lie within the limits below. A machine whose repeats of a profiled
step lie over 15% apart cannot tell, and that is what is said then, with exit code 1.

    python benchmarks/validate.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from lengthwise.commands import show
from lengthwise.config import RunConfig
from lengthwise.console import number, progress
from lengthwise.on_model import How, fit_lengths
from lengthwise.prepare import prepare
from lengthwise.validate.here import profiled, run_here
from lengthwise.validate.predict import configured
from lengthwise.validate.report import Report, validate
from sim.models import load_model
from traces import load

POLICIES = ("chunked-prefill", "dynamic-padding")
MODEL, REQUESTS, RUNS, LOAD, SCALE = "tiny", 150, 3, 0.6, "0.1"
QUIET = 0.15
"""The most that repeats of a profiled step may lie apart."""
LIMITS = {"mean": 0.10, "p99": 0.20}
"""The most that TTFT and TPOT may be off."""


def main() -> int:
    """Profile, run, compare; 0 where all limits hold."""
    how = How()
    shape = load_model(MODEL)
    trace, _ = fit_lengths(load("chat", limit=REQUESTS), SCALE, shape.max_positions)
    with tempfile.TemporaryDirectory() as folder:
        made = profiled(
            Path(folder), MODEL, how, None, trace.longest, lambda n: progress("profiling", n)
        )
        print(f"repeats of a profiled step lie {made.spread:.1%} apart")
        if made.spread > QUIET:
            print(f"NOT SAID: over {QUIET:.0%}, this machine is too noisy to tell; try it alone")
            return 1
        runs: dict[str, list[Report]] = {policy: [] for policy in POLICIES}
        configs = {policy: RunConfig.of(policy=policy, model=MODEL) for policy in POLICIES}
        costs = {
            policy: made.cost_of(prepare(config, trace).point.layout, Path(folder) / policy)
            for policy, config in configs.items()
        }
        for _ in range(RUNS):  # the policies in turn, so that drift falls on both
            for policy, config in configs.items():
                cost: dict[str, Any] = {"cost": str(costs[policy])}
                measured = run_here(trace, config, how, cost, LOAD, None)
                runs[policy].append(validate(measured, configured(measured, cost)))
    return judge(runs)


def judge(runs: dict[str, list[Report]]) -> int:
    """Print the median of each policy's runs and whether it holds."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("policy", "", "figure", "measured ms", "predicted ms", "error %", "limit %"):
        table.add_column(heading, justify="left" if heading in ("policy", "") else "right")
    table.add_column("range of the prediction, ms", justify="right")
    good = True
    for policy, reports in runs.items():
        for quantity in ("ttft", "tpot"):
            for figure, limit in LIMITS.items():
                errors = [report.main.error[quantity][figure] or np.inf for report in reports]
                middle = reports[int(np.argsort(errors)[len(errors) // 2])]
                held, cells = row(middle, quantity, figure, limit)
                good &= held
                table.add_row(policy, quantity.upper(), figure, *cells, style="" if held else "red")
    show(table)
    print("all limits hold" if good else "FAILED: a limit does not hold")
    return 0 if good else 1


def row(report: Report, quantity: str, figure: str, limit: float) -> tuple[bool, list[str]]:
    """Whether a figure is within its limit, a mean also within its range; and what is printed."""
    main = report.main
    measured, predicted = main.measured[quantity][figure], main.predicted[quantity][figure]
    error, span = main.error[quantity][figure], None
    if report.ranges is not None:
        span = report.ranges[quantity][figure]
    if measured is None or predicted is None or error is None or span is None:
        return False, ["–"] * 5
    held = abs(error) <= limit and (figure != "mean" or span[0] <= measured <= span[1])
    return held, [
        number(1e3 * measured),
        number(1e3 * predicted),
        f"{100 * error:+.1f}",
        f"{100 * limit:.0f}",
        " to ".join(number(1e3 * v) for v in span),
    ]


if __name__ == "__main__":
    sys.exit(main())
