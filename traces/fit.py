"""A spec from a trace: its rate over time, its burstiness within, its lengths and their tie."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traces.describe import spearman
from traces.errors import TraceError
from traces.generate import one_pass
from traces.rows import tick_of
from traces.spec import Curve, Quantiles, Spec, Tenant
from traces.trace import Trace

WINDOW_S = 60.0
"""Window of the rate curve, seconds; longer where it would hold few requests or be too many."""
PER_WINDOW = 20
MOST_WINDOWS = 10_080
"""A week of minutes."""
MOST_TENANTS = 100
ENOUGH = 200_000
"""Requests that burstiness is fitted on."""
LEVELS = np.unique(np.round(np.concatenate([np.linspace(0, 1, 201), np.linspace(0.99, 1, 11)]), 4))
"""Levels of the length quantiles: every half percent, and every 0.1% in the upper tail."""


def fit(trace: Trace) -> Spec:
    """A spec whose traces resemble `trace`: `generate(fit(trace))` has as many requests.

    Arrivals are counted in windows of a minute; within a window gaps are Gamma, with the CV at
    which the counts in shorter windows (a second, or one that holds two requests) vary as the
    trace's do. Lengths are quantiles, tied by the rank correlation. One tenant of the spec for each
    of the trace.

    Raises:
        TraceError: fewer than 2 requests, all at once, or too many tenants.
    """
    if trace.tenant is None:
        return Spec(tenants=[_tenant(trace, "default")])
    names = np.unique(trace.tenant.astype(str))
    if len(names) > MOST_TENANTS:
        raise TraceError(f"{trace.name}: {len(names)} tenants; at most {MOST_TENANTS} are fitted.")
    parts = [(name, trace.take(np.flatnonzero(trace.tenant == name))) for name in names]
    return Spec(tenants=[_tenant(part, name, trace.span_s) for name, part in parts])


def _tenant(trace: Trace, name: str, span_s: float | None = None) -> Tenant:
    priorities = [] if trace.priority is None else list(np.unique(trace.priority))
    if len(priorities) > 1:
        raise TraceError(
            f"{trace.name}: tenant {name} has {len(priorities)} priorities. "
            "Give requests of different priority different tenants."
        )
    tie = spearman(trace.prompt_tokens, trace.output_tokens) or 0.0
    return Tenant(
        name=name,
        arrivals=_curve(trace, trace.span_s if span_s is None else span_s),
        prompt=_quantiles(trace.prompt_tokens),
        output=_quantiles(trace.output_tokens),
        rank_correlation=round(float(np.clip(tie, -0.999, 0.999)), 4),
        priority=int(priorities[0]) if priorities else None,
    )


def _quantiles(tokens: NDArray[np.int64]) -> Quantiles:
    values = np.quantile(tokens, LEVELS)
    return Quantiles(levels=LEVELS.tolist(), tokens=np.round(values, 2).tolist())


def _curve(trace: Trace, span_s: float) -> Curve:
    """Counts by window, and the CV of the gaps within."""
    if len(trace) < 2 or not span_s:
        raise TraceError(
            f"{trace.name}: {len(trace)} requests in {trace.span_s:g} s have no rate to fit."
        )
    rate = len(trace) / span_s
    window = max(WINDOW_S, PER_WINDOW / rate, span_s / MOST_WINDOWS)
    # The last arrival lies at the span's end; a hair more lets it fall inside the last window.
    span = span_s * (1 + 1e-9)
    windows = int(np.ceil(span / window))
    counts = np.bincount((trace.arrival_s / window).astype(np.int64), minlength=windows)
    tick = tick_of(trace.arrival_s)
    tied = np.count_nonzero(np.diff(trace.arrival_s) == 0) > len(trace) / 2
    flat = Curve(
        window_s=window,
        counts=counts.tolist(),
        span_s=span,
        tick_s=_grid(trace.arrival_s) if tied and tick else None,
    )
    return flat.model_copy(update={"cv": _cv(trace, flat, max(1.0, 2 / rate))})


def _grid(arrival_s: NDArray[np.float64]) -> float:
    """The usual gap between distinct times of a coarse clock."""
    gaps = np.diff(arrival_s)
    return round(float(np.median(gaps[gaps > 0])), 3)


def _cv(trace: Trace, curve: Curve, bin_s: float) -> float:
    """The CV at which the curve's own traces vary in bins of `bin_s` as the trace does.

    By bisection on the same random numbers: variation grows with the CV.
    """
    windows = int(np.searchsorted(np.cumsum(curve.counts), ENOUGH)) + 1
    end = min(windows * curve.window_s, curve.span_s)
    target = _variance(trace.arrival_s, bin_s, end)
    low, high = 0.05, 20.0
    for _ in range(18):
        cv = float(np.sqrt(low * high))
        drawn = [
            _variance(one_pass(curve, cv, np.random.default_rng(seed)), bin_s, end)
            for seed in range(4)
        ]
        low, high = (low, cv) if np.mean(drawn) > target else (cv, high)
    return round(float(np.sqrt(low * high)), 4)


def _variance(arrival_s: NDArray[np.float64], bin_s: float, end_s: float) -> float:
    """Variance of the counts in whole bins before `end_s`."""
    bins = max(1, int(end_s / bin_s))
    index = (arrival_s / bin_s).astype(np.int64)
    return float(np.bincount(index[index < bins], minlength=bins).var())
