"""Tables and progress for a terminal, made from records."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from serving.metrics import LATENCIES
from serving.record import Record

PIPED_WIDTH = 240
"""Columns for text that goes to a file or a pipe, where nothing has to be left out."""

LABELS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E", "queue": "Queue"}
"""How latencies are called in headings."""

NONE = "–"

_LABEL_WIDTH = 20


def make_console(stderr: bool = False) -> Console:
    """A console that knows whether it is read by a person: no colours and no wrapping if not."""
    stream = sys.stderr if stderr else sys.stdout
    piped = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(stderr=stderr, width=PIPED_WIDTH if piped else None, highlight=False)


# Numbers


def number(value: float | None) -> str:
    """A figure with three or more digits that matter, thousands apart."""
    if value is None:
        return NONE
    size = abs(value)
    if size >= 1000 or (isinstance(value, int) and not isinstance(value, bool)):
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def percent(fraction: float | None) -> str:
    """A fraction as a percentage with one decimal."""
    return NONE if fraction is None else f"{100 * fraction:.1f}%"


def latency_unit(values_ms: list[float | None]) -> tuple[str, float]:
    """The unit in which all of `values_ms` read well, and how many of it are in a millisecond."""
    most = max((abs(v) for v in values_ms if v is not None), default=0.0)
    return ("s", 1e-3) if most >= 1e5 else ("ms", 1.0)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


# One run


def replay_table(record: Record) -> RenderableType:
    """Everything about one run: who was served, how fast, and what the hardware did for it."""
    return Panel(
        Group(
            _facts(_service(record)),
            Text(),
            _latency_table(record.summary),
            Text(),
            _efficiency_table(record),
            Text(),
            _facts(_engine(record)),
        ),
        title=Text(_title(record.config), style="bold"),
        title_align="left",
        expand=False,
        box=box.ROUNDED,
        padding=(0, 1),
    )


def _title(config: Mapping[str, Any]) -> str:
    """The policy, and on what it ran, as far as that is known."""
    known = {**config.get("run", {}), **config}
    place = " on ".join(str(known[k]) for k in ("model", "hardware") if known.get(k))
    return ", ".join(part for part in (str(known.get("policy", "run")), place) if part)


def _facts(facts: Mapping[str, str]) -> Table:
    """A label and a sentence a line."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=_LABEL_WIDTH, no_wrap=True)
    table.add_column(overflow="fold")
    for label, fact in facts.items():
        table.add_row(label, Text(fact))
    return table


def _figures_table(*headings: str) -> Table:
    """A table whose first column is a label and whose other ones are figures, all alike."""
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold",
    )
    table.add_column(headings[0], min_width=_LABEL_WIDTH, no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right", min_width=9, no_wrap=True)
    return table


def _service(record: Record) -> dict[str, str]:
    """Who was served, and at what rate."""
    s = record.summary
    served = f"{s['num_prompts']:,} in, {s['completed']:,} finished, {s['refused']:,} refused"
    facts = {
        "Requests": served + (f", {s['unfinished']:,} unfinished" if s["unfinished"] else ""),
        "Duration": f"{number(s['duration'])} s",
        "Throughput": f"{number(s['request_throughput'])} requests/s, "
        f"{number(s['output_throughput'])} output tok/s, "
        f"{number(s['total_token_throughput'])} total tok/s",
    }
    if s.get("request_goodput") is not None:
        facts["Goodput"] = (
            f"{number(s['request_goodput'])} requests/s within every limit, "
            f"{percent(s['slo_attainment'])} of requests"
        )
    for name, part in s.get("slo", {}).items():
        value = "for ever" if part["value_ms"] is None and not part["met"] else "undefined"
        if part["value_ms"] is not None:
            value = f"{number(part['value_ms'])} ms"
        verdict = "met" if part["met"] else "NOT met"
        facts[f"SLO {name}"] = f"{verdict}: {value}, limit {number(part['limit_ms'])} ms"
    return facts


def _latency_table(s: Mapping[str, Any]) -> Table:
    """Mean, median, p90 and p99 of every latency."""
    table = _figures_table("Latency", "mean", "p50", "p90", "p99")
    for name in LATENCIES:
        values = [s[f"{figure}_{name}_ms"] for figure in ("mean", "median", "p90", "p99")]
        unit, factor = latency_unit(values)
        label = f"{LABELS[name]} ({unit})"
        table.add_row(label, *(number(_scaled(value, factor)) for value in values))
    return table


def _efficiency_table(record: Record) -> Table:
    """What was useful of the slots and query-key pairs computed."""
    use = record.folded.steps.efficiency
    phases = [use["prefill"], use["decode"], use["whole"]]
    table = _figures_table("Computed work", "prefill", "decode", "whole")
    table.add_row("Padding ratio", *(percent(p.padding_ratio) for p in phases))
    table.add_row(
        "Attention efficiency", *(percent(phase.attention_efficiency) for phase in phases)
    )
    return table


def _engine(record: Record) -> dict[str, str]:
    """Steps, budget, memory and hardware use."""
    s, budget = record.summary, record.config.get("max_num_batched_tokens")
    used = f", computed slots fill {percent(s['budget_use'])} of {budget:,}" if budget else ""
    kv = f"mean {percent(s['kv_mean_fraction'])}, peak {percent(s['kv_peak_fraction'])}"
    if s["kv_peak_fraction"] is None:  # of replicas that differ, nobody's share is the cluster's
        kv = NONE if "members" in record.config else "unlimited"
    facts = {}
    if record.config.get("replicas"):
        facts["Replicas"] = f"{record.config['replicas']:,} behind {record.config['router']}"
    facts |= {
        "Steps": f"{s['steps']:,}, {number(s['mean_running'])} requests running on average",
        "Tokens a step": number(s["mean_step_tokens"]) + used,
        "KV blocks in use": kv,
        "Preemptions": f"{s['preemptions']:,}",
    }
    if s["prefix_hit_rate"] is not None:
        facts["Prefix cache hits"] = f"{percent(s['prefix_hit_rate'])} of prompt tokens"
    if s["mfu"] is not None or s["mbu"] is not None:
        facts["Hardware use"] = f"MFU {percent(s['mfu'])}, memory bandwidth {percent(s['mbu'])}"
    return facts


def refusals(record: Record, most: int = 5) -> RenderableType | None:
    """The refused requests by reason, or None if there are none.

    Args:
        record: the run.
        most: how many requests to name for each reason.
    """
    columns = record.request_columns
    refused = np.flatnonzero(columns["status"] == "refused")
    if not len(refused):
        return None
    groups: dict[str, list[tuple[int, str]]] = {}
    for request, reason in zip(*(columns[c][refused] for c in ("request", "reason")), strict=True):
        # Reasons of one kind differ only in their numbers.
        groups.setdefault(re.sub(r"\d+", "#", str(reason)), []).append((request, str(reason)))
    total = len(columns["status"])
    lines = [Text(f"{len(refused):,} of {total:,} requests refused", style="bold")]
    for group in sorted(groups.values(), key=len, reverse=True):
        request, reason = group[0]
        line = f"  {len(group):,}: request {request}: {reason}"
        if len(group) > 1:
            others = ", ".join(str(other) for other, _ in group[1:most])
            more = f" and {len(group) - most:,} more" if len(group) > most else ""
            line += f" (alike: {others}{more})"
        lines.append(Text(line))
    return Group(*lines)


# Several runs


@dataclass(frozen=True)
class _Column:
    """A column of the comparison: what it shows, and how early it gives way on a narrow screen."""

    heading: str
    value: Callable[[Mapping[str, Any]], float | None]
    keep: int  # the smallest goes first
    kind: str = "number"  # number, percent, latency
    best: Callable[[list[float]], float] | None = None


def _latency(name: str, figure: str, keep: int) -> _Column:
    short = {"median": "p50"}.get(figure, figure)
    key = f"{figure}_{name}_ms"
    return _Column(f"{LABELS[name]}\n{short}", lambda s: s[key], keep, "latency", min)


def _share(heading: str, key: str, keep: int, best: Callable[[list[float]], float]) -> _Column:
    return _Column(heading, lambda s: s[key], keep, "percent", best)


_COLUMNS = (
    _Column("finished\n", lambda s: s["completed"], 90),
    _Column("refused\n", lambda s: s["refused"] or None, 60),
    _Column("duration\n(s)", lambda s: s["duration"], 30, best=min),
    _Column("requests\n/s", lambda s: s["request_throughput"], 40, best=max),
    _Column("output\ntok/s", lambda s: s["output_throughput"], 95, best=max),
    _Column("goodput\nreq/s", lambda s: s.get("request_goodput"), 99, best=max),
    _latency("ttft", "mean", 50),
    _latency("ttft", "p99", 93),
    _latency("tpot", "mean", 45),
    _latency("tpot", "p99", 70),
    _latency("itl", "p99", 91),
    _latency("e2el", "mean", 55),
    _latency("e2el", "p99", 92),
    _latency("queue", "mean", 25),
    _share("padding\n", "padding_ratio", 94, min),
    _share("attention\nefficiency", "attention_efficiency", 65, max),
    _Column("tokens\n/step", lambda s: s["mean_step_tokens"], 35),
    _share("KV\npeak", "kv_peak_fraction", 20, min),
    _Column("preemptions\n", lambda s: s["preemptions"], 15),
    _share("MFU\n", "mfu", 22, max),
)


def _title_of(column: _Column) -> str:
    """A heading on one line, as in requests/s."""
    return " ".join(column.heading.split()).replace(" /", "/")


class ComparisonTable:
    """A row a run, the best figure of a column in bold; columns give way on a narrow screen."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        """Take the runs in the order in which they are to be shown, by name."""
        self._summaries = {name: record.summary for name, record in records.items()}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render with as many columns as fit, and say which ones did not."""
        shown = [c for c in _COLUMNS if any(c.value(s) is not None for s in self._rows())]
        left_out: list[_Column] = []
        table = self._table(shown)
        endless = options.update(width=10_000)
        while Measurement.get(console, endless, table).maximum > options.max_width and shown:
            least = min(shown, key=lambda column: column.keep)
            shown.remove(least)
            left_out.append(least)
            table = self._table(shown)
        yield table
        if left_out:
            names = ", ".join(_title_of(c) for c in _COLUMNS if c in left_out)
            yield Text(f"On a wider screen also: {names}.", style="dim")

    def _rows(self) -> list[Mapping[str, Any]]:
        return list(self._summaries.values())

    def _table(self, columns: list[_Column]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
        table.add_column("policy", no_wrap=True, vertical="bottom")
        cells = []
        for column in columns:
            heading, values = self._cells(column)
            table.add_column(heading, justify="right", no_wrap=True)
            cells.append(values)
        for i, name in enumerate(self._summaries):
            table.add_row(Text(name), *(values[i] for values in cells))
        return table

    def _cells(self, column: _Column) -> tuple[str, list[Text]]:
        """The heading with its unit, and the figures of one column."""
        values = [column.value(s) for s in self._rows()]
        heading, factor = column.heading, 1.0
        if column.kind == "latency":
            unit, factor = latency_unit(values)
            heading = f"{heading} {unit}"
        write = percent if column.kind == "percent" else number
        known = [v for v in values if v is not None]
        best = column.best(known) if column.best and len(set(known)) > 1 else None
        return heading, [
            Text(
                write(_scaled(v, factor) if factor != 1 else v),
                style="bold green" if v is not None and v == best else "",
            )
            for v in values
        ]


def compare_table(records: Mapping[str, Record]) -> RenderableType:
    """Runs side by side, a row each, as many columns as fit; names are the first column."""
    return ComparisonTable(records)


# Waiting


@contextmanager
def progress(label: str, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar with the time that is left, on the terminal's error stream; none when piped.

    Args:
        label: what is going on.
        total: how many there are.
        quiet: show nothing.

    Yields:
        A function to call with how many are done so far.
    """
    console = make_console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda done: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)
