"""One run of a plan, and what it says: do the limits hold, and does the queue grow?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lengthwise.api import run, whole
from lengthwise.cluster import prepare_run
from lengthwise.config import RunConfig
from lengthwise.planning.saturation import growth
from lengthwise.planning.search import Found, highest
from lengthwise.prepare import Prepared
from sim.range import range_of
from traces import Trace

KEPT = (
    "num_prompts",
    "completed",
    "refused",
    "duration",
    "request_throughput",
    "output_throughput",
    "request_goodput",
    "slo_attainment",
    "p99_ttft_ms",
    "p99_tpot_ms",
    "mean_e2el_ms",
    "kv_peak_fraction",
    "preemptions",
)
"""Figures of every run that a plan keeps."""


@dataclass(frozen=True)
class Outcome:
    """What one run says."""

    rate: float
    """Requests offered a second."""
    span_s: float
    """Over which they arrived."""
    replicas: int
    figures: Mapping[str, Any]
    limits: Mapping[str, Mapping[str, Any]]
    """Of each limit `limit_ms`, `value_ms` (None: for ever, or undefined), `met`."""
    grows: float
    """By which share of all requests the queue grew."""
    saturated: bool

    @property
    def sustained(self) -> bool:
        """Whether every limit holds and the queue does not grow."""
        return not self.saturated and all(limit["met"] for limit in self.limits.values())

    @property
    def overlaps(self) -> bool:
        """Whether requests arrive over a longer time than one of them takes."""
        return self.span_s * 1e3 > (self.figures["mean_e2el_ms"] or 0.0)

    @property
    def margins(self) -> dict[str, float]:
        """Of each limit, the value as a multiple of it; over 1 is too much."""
        return {
            name: (limit["value_ms"] / limit["limit_ms"])
            if limit["value_ms"] is not None
            else (0.0 if limit["met"] else float("inf"))
            for name, limit in self.limits.items()
        }

    @property
    def tightest(self) -> tuple[str, float]:
        """The limit that is nearest to its value, or furthest over it, and its margin."""
        return max(self.margins.items(), key=lambda item: item[1])

    @property
    def said(self) -> str:
        """Why it is not sustained, or how near it is to that."""
        name, margin = self.tightest
        value, limit = self.limits[name]["value_ms"], self.limits[name]["limit_ms"]
        shown = "for ever" if value is None else f"{value:.4g} ms"
        if margin <= 1 and self.saturated:
            return f"the queue grows by {100 * self.grows:.1f}% of all requests"
        return f"{name} is {shown}, limit {limit:g} ms"


def probe(
    config: RunConfig, trace: Trace, scale: float, end: str | None = None, folder: str | None = None
) -> Outcome:
    """Run `trace` at `scale` times its own rate.

    Args:
        config: with an `slo`.
        trace: at its own rate.
        scale: of the rate.
        end: `faster` or `slower`: that end of the cost model's range.
        folder: where the record is saved; not saved if not given.
    """
    config = config.model_copy(update={"rate_scale": scale})
    faster = trace.at_rate(scale)
    ready = prepare_run(config, faster)
    if end is not None:
        ready = at_end(ready, end)
    record = whole(run(ready, faster))
    if folder is not None:
        record.save(Path(folder))
    summary, grown = record.summary, growth(record)
    return Outcome(
        rate=(len(faster) - 1) / faster.span_s if faster.span_s else float("inf"),
        span_s=faster.span_s,
        replicas=config.replicas,
        figures={name: summary.get(name) for name in KEPT},
        limits=summary["slo"],
        grows=grown.share,
        saturated=grown.saturated or not summary["completed"],
    )


def at_end(ready: Prepared, end: str) -> Prepared:
    """The run with its cost model at an end of its range, and that said in its record."""
    found = range_of(ready.cost)
    if found is None:
        return ready
    cost = found.faster if end == "faster" else found.slower
    return replace(
        ready,
        cost=cost,
        facts=ready.facts | {"cost_range": end},
        members=tuple(replace(member, cost=cost) for member in ready.members),
    )


def search(
    config: RunConfig,
    trace: Trace,
    start: float,
    tolerance: float,
    factor: float = 2.0,
    end: str | None = None,
    known: Outcome | None = None,
) -> Found[Outcome]:
    """The highest rate that `config` sustains (see `search.highest`)."""
    return highest(lambda scale: probe(config, trace, scale, end), start, tolerance, factor, known)
