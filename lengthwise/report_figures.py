"""The report's table of figures: a row a figure, a column a run, the best of each row marked."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

from lengthwise.console import LABELS, latency_unit, number, percent
from serving.metrics import LATENCIES
from serving.record import Record


class Line(NamedTuple):
    """A row of the table."""

    label: str
    key: str
    kind: str = "number"
    """`number`, `percent` or `latency` (ms in the summary, shown in the unit that reads well)."""
    best: str = ""
    """`min` or `max` where one end is better."""


def _latency(name: str) -> tuple[Line, ...]:
    figures = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
    return tuple(
        Line(label, f"{figure}_{name}_ms", "latency", "min") for label, figure in figures.items()
    )


GROUPS: dict[str, tuple[Line, ...]] = {
    "Requests": (
        Line("In", "num_prompts"),
        Line("Finished", "completed", best="max"),
        Line("Refused", "refused", best="min"),
        Line("Unfinished", "unfinished", best="min"),
        Line("Duration (s)", "duration", best="min"),
        Line("Requests/s", "request_throughput", best="max"),
        Line("Output tokens/s", "output_throughput", best="max"),
        Line("Goodput (requests/s)", "request_goodput", best="max"),
        Line("Requests within every limit", "slo_attainment", "percent", "max"),
    ),
    **{LABELS[name]: _latency(name) for name in LATENCIES},
    "Computed work": (
        Line("Padding ratio", "padding_ratio", "percent", "min"),
        Line("Padding ratio, prefill", "prefill_padding_ratio", "percent", "min"),
        Line("Padding ratio, decode", "decode_padding_ratio", "percent", "min"),
        Line("Attention efficiency", "attention_efficiency", "percent", "max"),
    ),
    "Engine": (
        Line("Steps", "steps"),
        Line("Tokens a step", "mean_step_tokens"),
        Line("Budget used", "budget_use", "percent"),
        Line("Requests running, mean", "mean_running"),
        Line("Preemptions", "preemptions", best="min"),
        Line("Prefix cache hits", "prefix_hit_rate", "percent", "max"),
        Line("KV in use, mean", "kv_mean_fraction", "percent"),
        Line("KV in use, peak", "kv_peak_fraction", "percent"),
        Line("MFU", "mfu", "percent", "max"),
        Line("Memory bandwidth", "mbu", "percent"),
    ),
}


def figures_table(records: Mapping[str, Record]) -> str:
    """The table as HTML; a figure that no run has is left out."""
    summaries = [record.summary for record in records.values()]
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in records)
    body = []
    for group, lines in GROUPS.items():
        rows = [_row(line, summaries) for line in lines if _known(line, summaries)]
        if rows:
            width = len(records) + 1
            body.append(
                f'<tr class="group"><th scope="rowgroup" colspan="{width}">{group}</th></tr>'
            )
        body += rows
    return (
        '<div class="scroll" tabindex="0"><table id="figures">'
        f'<thead><tr><th scope="col">Figure</th>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _known(line: Line, summaries: list[dict[str, Any]]) -> set[float]:
    return {s[line.key] for s in summaries if s.get(line.key) is not None}


def _row(line: Line, summaries: list[dict[str, Any]]) -> str:
    values: list[float | None] = [s.get(line.key) for s in summaries]
    known = _known(line, summaries)
    best = None
    if line.best and len(known) > 1:
        best = min(known) if line.best == "min" else max(known)
    label, factor = line.label, 1.0
    if line.kind == "latency":
        unit, factor = latency_unit(values)
        label = f"{label} ({unit})"
    cells = ""
    for value in values:
        if line.kind == "percent":
            shown = percent(value)
        else:
            shown = number(value if value is None or factor == 1 else value * factor)
        mark = ' class="best"' if value is not None and value == best else ""
        cells += f"<td{mark}>{shown}</td>"
    return f'<tr><th scope="row">{escape(label)}</th>{cells}</tr>'
