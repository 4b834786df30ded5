"""A validation report for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from lengthwise.console import NONE, number
from lengthwise.validate.compare import FIGURES, QUANTITIES, TIMES, Comparison
from lengthwise.validate.report import Report

LABELS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "throughput": "Throughput"}


def tables(report: Report) -> list[Any]:
    """Everything a reader is to see, in order."""
    shown: list[Any] = [Text(_title(report), style="bold"), _figures(report), _wape(report)]
    shown += [Text(line) for line in _lines(report)]
    return shown


def _title(report: Report) -> str:
    main = report.main
    more = f", {main.left_out:,} ended on one side only" if main.left_out else ""
    return f"{report.measured.name}: {main.requests:,} requests, measured and predicted{more}"


def _grid(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _figures(report: Report) -> Table:
    """Measured, predicted, error and range of each figure."""
    table = _grid("", "figure", "measured", "predicted", "error %", "range")
    main, error = report.main, report.main.error
    for name in QUANTITIES:
        factor, unit = (1.0, "tok/s") if name == "throughput" else (1e3, "ms")
        label = f"{LABELS[name]} ({unit})"
        for figure in FIGURES:
            values = main.measured[name][figure], main.predicted[name][figure]
            if values == (None, None):
                continue
            span = None if report.ranges is None else report.ranges[name][figure]
            table.add_row(
                label,
                figure,
                *(number(None if v is None else factor * v) for v in values),
                signed(error[name][figure]),
                NONE if span is None else " to ".join(number(factor * v) for v in span),
            )
            label = ""
    return table


def _wape(report: Report) -> Table:
    """Errors of single requests: Σ |error| / Σ measured."""
    table = _grid("Error per request (WAPE %)", *(LABELS[name] for name in TIMES))
    table.add_row("lengthwise", *_percents(report.main.wape))
    if report.peer is not None:
        table.add_row("LLMServingSim, same run", *_percents(report.peer))
    if report.warmup is not None:
        table.add_row(f"warm-up, {report.warmup.requests} requests", *_percents(report.warmup.wape))
    table.add_row(f"light load, {report.light.requests} requests", *_percents(report.light.wape))
    return table


def _percents(values: Mapping[str, float | None]) -> list[str]:
    return [NONE if values[name] is None else f"{100 * (values[name] or 0):.2f}" for name in TIMES]


def signed(error: float | None) -> str:
    """An error in %, with its sign."""
    return NONE if error is None else f"{100 * error:+.2f}"


def _lines(report: Report) -> list[str]:
    return [*_light(report.light), *_overhead(report), *_plans(report)]


def _light(light: Comparison) -> list[str]:
    if not light.requests:
        return ["Light load: no request met an empty queue"]
    means = (f"{LABELS[name]} {signed(light.error[name]['mean'])}%" for name in TIMES)
    return [f"Light load, errors of the mean: {', '.join(means)}"]


def _overhead(report: Report) -> list[str]:
    fitted = report.overhead
    if fitted is None:
        used = report.overhead_us
        return [] if not used else [f"Overhead: {used:.1f} µs a layer, as given"]
    lines = [
        f"Overhead: {fitted.us_per_layer:.1f} µs a layer, fitted on {fitted.run}: "
        + (
            "the figures of that run above are fitted, not blind"
            if fitted.run == report.measured.name
            else "another run, so the figures above are blind"
        )
    ]
    halves = fitted.halves
    if halves is not None:
        for name, half in (("first", halves.first), ("second", halves.second)):
            means = ", ".join(f"{LABELS[q]} {signed(half.error[q]['mean'])}%" for q in TIMES)
            wape = " / ".join(_percents(half.wape))
            known = "fitted" if name == "first" else "blind"
            lines.append(
                f"  {halves.overhead_us:.1f} µs from its first half: {name} half ({known}), "
                f"errors of the mean {means}; WAPE {wape}%"
            )
    return lines


def _plans(report: Report) -> list[str]:
    if report.measured.record is None:
        return ["The source holds no steps: cost and schedule errors cannot be told apart"]
    lines, plan, parted = [], report.plan, report.parted
    if plan is not None:
        kinds = ", ".join(f"{name} {signed(value)}%" for name, value in plan.by_region.items())
        lines.append(
            f"The measured plan priced, {plan.steps:,} steps: {signed(plan.error)}% of all "
            f"seconds ({kinds}); a step is off by {100 * plan.mean_error:.1f}% on average, "
            f"p90 {100 * plan.p90_error:.1f}%"
        )
    if parted is None:
        lines.append("Plans: the same steps from the first to the last")
    else:
        lines.append(f"Plans differ from step {parted.step} on:")
        for side, at in (("measured", parted.measured), ("predicted", parted.predicted)):
            when = "has no such step" if at.start_s is None else f"at {at.start_s:.3f} s"
            what = ", ".join(f"{e['kind']} {e['request']} ({e['tokens']})" for e in at.events[:8])
            more = f" and {len(at.events) - 8} more" if len(at.events) > 8 else ""
            lines.append(f"  {side} {when}: {what or 'nothing but decodes'}{more}")
    return lines
