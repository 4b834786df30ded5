"""What a trace is like: counts, rate, burstiness, lengths, correlation, shared prefixes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.trace import Trace

QUANTILES = (1, 10, 25, 50, 75, 90, 95, 99)
"""Percentiles of the lengths; the least and the largest are given too."""
ROUND_WINDOWS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
BINS = 10
"""Counts that an index of dispersion needs at least."""


def describe(trace: Trace) -> dict[str, Any]:
    """The figures of a trace, as JSON has them; an undefined figure is None.

    `mean_rate` is 1 over the mean gap (requests a second). `gap_cv` is the coefficient of
    variation of the gaps; `dispersion_W` is the variance over the mean of the counts in windows of
    W seconds from the first arrival, the last incomplete one left out (both 1 for a Poisson
    process).
    `shared_prefix_share` is the share of prompt tokens that lie in blocks an earlier request had.
    """
    gaps = np.diff(trace.arrival_s)
    span = trace.span_s
    return {
        "name": trace.name,
        "requests": len(trace),
        "total_prompt_tokens": int(trace.prompt_tokens.sum()),
        "total_output_tokens": int(trace.output_tokens.sum()),
        "span_s": span,
        "mean_rate": len(gaps) / span if span else None,
        "rate_over_time": rate_over_time(trace),
        "peak_rate_1s": _peak(trace, 1.0),
        "peak_rate_60s": _peak(trace, 60.0),
        "gap_cv": float(gaps.std() / gaps.mean()) if span else None,
        "dispersion_1s": dispersion(trace.arrival_s, 1.0),
        "dispersion_60s": dispersion(trace.arrival_s, 60.0),
        "shared_arrival_times": int(np.count_nonzero(gaps == 0)),
        "prompt_tokens": _lengths(trace.prompt_tokens),
        "output_tokens": _lengths(trace.output_tokens),
        "longest_total_tokens": trace.longest,
        "prompt_output_spearman": spearman(trace.prompt_tokens, trace.output_tokens),
        "shared_prefix_share": shared_prefix_share(trace),
        "priorities": None if trace.priority is None else _shares(trace.priority),
        "tenants": None if trace.tenant is None else _shares(trace.tenant),
        "notes": list(trace.notes),
    }


def counts(arrival_s: NDArray[np.float64], window_s: float) -> NDArray[np.int64]:
    """Arrivals in each whole window from the first arrival, shape [windows]."""
    if not len(arrival_s):
        return np.zeros(0, np.int64)
    windows = int((arrival_s[-1] - arrival_s[0]) / window_s)
    index = ((arrival_s - arrival_s[0]) / window_s).astype(np.int64)
    return np.bincount(index[index < windows], minlength=windows)


def round_window(span_s: float) -> float:
    """A window of which about 60 make the span: a round number of seconds, minutes or hours."""
    return next((w for w in ROUND_WINDOWS if w >= span_s / 60), span_s / 60)


def rate_over_time(trace: Trace) -> dict[str, Any] | None:
    """Requests a second in consecutive windows, at most 60; None where all arrive at once."""
    if not trace.span_s:
        return None
    window = round_window(trace.span_s)
    rates = counts(trace.arrival_s, window) / window
    return {"window_s": window, "requests_per_s": rates.tolist()}


def dispersion(arrival_s: NDArray[np.float64], window_s: float) -> float | None:
    """Index of dispersion: variance over mean of the counts; None below `BINS` windows."""
    if len(arrival_s) < 2 or (arrival_s[-1] - arrival_s[0]) / window_s < BINS:
        return None
    number = counts(arrival_s, window_s)
    return float(number.var() / number.mean()) if number.any() else None


def spearman(a: NDArray[Any], b: NDArray[Any]) -> float | None:
    """Rank correlation, equal values sharing their mean rank; None where one never varies."""
    if len(a) < 2 or (a == a[0]).all() or (b == b[0]).all():
        return None
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Ranks from 0, equal values sharing their mean rank."""
    _, inverse, number = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(number) - (number + 1) / 2
    shared: NDArray[np.float64] = middle[inverse]
    return shared


def shared_prefix_share(trace: Trace) -> float | None:
    """Prompt tokens in blocks that an earlier request had, over all; None without hash ids.

    What a prefix cache that never evicts would save.
    """
    hashes = trace.hashes
    if hashes is None or not len(trace):
        return None
    per_row = np.diff(hashes.offsets)
    first = np.zeros(len(hashes.ids), bool)
    first[np.unique(hashes.ids, return_index=True)[1]] = True
    tokens = np.full(len(hashes.ids), hashes.block_tokens, np.int64)
    tokens[hashes.offsets[1:] - 1] = trace.prompt_tokens - (per_row - 1) * hashes.block_tokens
    return float(tokens[~first].sum() / trace.prompt_tokens.sum())


def _peak(trace: Trace, window_s: float) -> float | None:
    number = counts(trace.arrival_s, window_s)
    return float(number.max() / window_s) if len(number) else None


def _lengths(tokens: NDArray[np.int64]) -> dict[str, float] | None:
    if not len(tokens):
        return None
    levels = np.percentile(tokens, QUANTILES)
    figures = {f"p{q}": float(value) for q, value in zip(QUANTILES, levels, strict=True)}
    return {
        "mean": float(tokens.mean()),
        "std": float(tokens.std()),
        "min": int(tokens.min()),
        **figures,
        "max": int(tokens.max()),
    }


def _shares(column: NDArray[Any]) -> dict[str, int]:
    values, number = np.unique(column, return_counts=True)
    return {str(v): int(n) for v, n in zip(values, number, strict=True)}
