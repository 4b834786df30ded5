"""Making traces: a spec's tenants drawn from their distributions, and a spec fitted to a trace."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from traces import arrivals, lengths
from traces.errors import TraceError
from traces.load import load
from traces.spec import (
    Constant,
    Curve,
    Diurnal,
    FileArrivals,
    FileLengths,
    Fixed,
    Gamma,
    Lengths,
    Lognormal,
    OnOff,
    Pareto,
    Poisson,
    Quantiles,
    Spec,
    Tenant,
    Uniform,
    Weibull,
    Zipf,
)
from traces.trace import Trace

MOST = 200_000_000
"""Requests that are generated at most."""


class _Files(dict[str, Trace]):
    """Traces that a spec names, each read once."""

    def __missing__(self, path: str) -> Trace:
        self[path] = load(path)
        return self[path]


def generate(spec: Spec) -> Trace:
    """The trace that `spec` describes: its first `requests`, or all of its `duration_s`.

    Without either, a spec whose arrivals are curves or files gives them once. Each tenant draws
    from its own stream of the seed, so that one more tenant changes nothing in the others.

    Raises:
        TraceError: a file that cannot be read, or no request at all.
    """
    files = _Files()
    times = _times(spec, files)
    parts = [_draw(t, i, times[i], spec.seed, files) for i, t in enumerate(spec.tenants)]
    arrival = np.concatenate([part.arrival_s for part in parts])
    order = np.argsort(arrival, kind="stable")[: spec.requests]
    if not len(order):
        raise TraceError("the spec generates no request. Give a longer duration or a higher rate.")
    several = len(parts) > 1
    names = [np.full(len(p), t.name, object) for p, t in zip(parts, spec.tenants, strict=True)]
    ranked = any(tenant.priority is not None for tenant in spec.tenants)
    ranks = [np.full(len(p), t.priority or 0) for p, t in zip(parts, spec.tenants, strict=True)]
    first = arrival[order[0]]
    return Trace(
        arrival[order] - first,
        np.concatenate([part.prompt_tokens for part in parts])[order],
        np.concatenate([part.output_tokens for part in parts])[order],
        np.concatenate(ranks)[order] if ranked else None,
        tenant=np.concatenate(names)[order] if several else None,
        name="generated",
        notes=(f"generated: {len(order):,} requests, seed {spec.seed}",),
    )


def _times(spec: Spec, files: _Files) -> list[NDArray[np.float64]]:
    """Arrival times of each tenant, for as long as it takes to have the requests wanted."""
    rates = [_rate(tenant, files) for tenant in spec.tenants]
    total = sum(rates)
    if spec.duration_s is not None:
        end = spec.duration_s
    elif spec.requests is not None:
        end = spec.requests / total
    else:
        end = max(_own_span(tenant, files) for tenant in spec.tenants)
    if total * end > MOST:
        raise TraceError(f"about {total * end:,.0f} requests; at most {MOST:,} are generated.")
    while True:
        times = [
            _arrivals(tenant, rate, end, _stream(spec.seed, index, 0), files)
            for index, (tenant, rate) in enumerate(zip(spec.tenants, rates, strict=True))
        ]
        wanted = 0 if spec.duration_s is not None else spec.requests or 0
        if sum(map(len, times)) >= wanted:
            return times
        end *= 1.25


def _stream(seed: int, tenant: int, use: int) -> Generator:
    return np.random.default_rng([seed, tenant, use])


def _rate(tenant: Tenant, files: _Files) -> float:
    """A tenant's mean rate."""
    if tenant.rate is not None:
        return tenant.rate
    if isinstance(tenant.arrivals, Curve):
        return sum(tenant.arrivals.counts) / tenant.arrivals.span_s
    assert isinstance(tenant.arrivals, FileArrivals)
    return _file_rate(files[tenant.arrivals.path])


def _file_rate(trace: Trace) -> float:
    if not trace.span_s:
        raise TraceError(f"{trace.name}: all requests arrive at once; it has no rate to follow.")
    return (len(trace) - 1) / trace.span_s


def _own_span(tenant: Tenant, files: _Files) -> float:
    """How long a curve or a file lasts, at the tenant's rate."""
    if isinstance(tenant.arrivals, Curve):
        return sum(tenant.arrivals.counts) / _rate(tenant, files)
    if isinstance(tenant.arrivals, FileArrivals):
        return len(files[tenant.arrivals.path]) / _rate(tenant, files)
    raise TraceError("the spec says neither requests nor duration_s. Give one of them.")


def _arrivals(
    tenant: Tenant, rate: float, end_s: float, rng: Generator, files: _Files
) -> NDArray[np.float64]:
    """A tenant's arrival times before `end_s`."""
    match tenant.arrivals:
        case Constant():
            return arrivals.renewal(arrivals.constant_gaps, rate, end_s, rng)
        case Poisson():
            return arrivals.renewal(arrivals.poisson_gaps, rate, end_s, rng)
        case Gamma(cv=cv):
            return arrivals.renewal(arrivals.gamma_gaps(1 / cv**2), rate, end_s, rng)
        case Weibull(cv=cv):
            gaps = arrivals.weibull_gaps(arrivals.weibull_shape(cv))
            return arrivals.renewal(gaps, rate, end_s, rng)
        case OnOff(on_s=on_s, off_s=off_s):
            return arrivals.on_off(on_s, off_s, rate, end_s, rng)
        case Diurnal(peak=peak, period_s=period_s):
            return arrivals.diurnal(peak, period_s, rate, end_s, rng)
        case Curve() as curve:
            slower = sum(curve.counts) / curve.span_s / rate
            times = _repeated(one_pass(curve, curve.cv, rng), curve.span_s, end_s / slower)
            return times * slower
        case FileArrivals(path=path):
            trace = files[path]
            own = _file_rate(trace)
            times = _repeated(trace.arrival_s, len(trace) / own, end_s * rate / own)
            return times * (own / rate)


def one_pass(curve: Curve, cv: float, rng: Generator) -> NDArray[np.float64]:
    """Arrival times of one pass through a curve's windows, with gaps of `cv` within them."""
    gaps = arrivals.gamma_gaps(1 / cv**2)
    times = arrivals.by_counts(np.array(curve.counts), curve.window_s, curve.span_s, gaps, rng)
    return times if curve.tick_s is None else np.floor(times / curve.tick_s) * curve.tick_s


def _repeated(times: NDArray[np.float64], period_s: float, end_s: float) -> NDArray[np.float64]:
    """`times` again and again, `period_s` apart, up to before `end_s`."""
    passes = max(1, int(np.ceil(end_s / period_s - 1e-9)))
    repeated = np.concatenate([times + i * period_s for i in range(passes)])
    return repeated[repeated < end_s * (1 + 1e-9)]


def _draw(
    tenant: Tenant, index: int, times: NDArray[np.float64], seed: int, files: _Files
) -> Trace:
    """A tenant's requests at `times`."""
    rng = _stream(seed, index, 1)
    n = len(times)
    if tenant.joint is not None:
        origin = files[tenant.joint]
        rows = rng.integers(0, len(origin), n)
        return Trace(times, origin.prompt_tokens[rows], origin.output_tokens[rows])
    assert tenant.prompt is not None
    assert tenant.output is not None
    u, v = lengths.pairs(n, tenant.rank_correlation, rng)
    prompt = lengths.whole(
        _inverse(tenant.prompt, "prompt_tokens", files), u, f"{tenant.name} prompt"
    )
    output = lengths.whole(
        _inverse(tenant.output, "output_tokens", files), v, f"{tenant.name} output"
    )
    return Trace(times, prompt, output)


def _inverse(spec: Lengths, column: str, files: _Files) -> lengths.Inverse:
    """The inverse distribution that a spec names."""
    match spec:
        case Fixed(tokens=tokens):
            return lengths.fixed(tokens)
        case Uniform(low=low, high=high):
            return lengths.uniform(low, high)
        case Lognormal(mean=mean, sigma=sigma, most=most):
            return lengths.lognormal(mean, sigma, most)
        case Zipf(exponent=exponent, most=most):
            return lengths.zipf(exponent, most)
        case Pareto(alpha=alpha, least=least, most=most):
            return lengths.pareto(alpha, least, most)
        case Quantiles(levels=levels, tokens=tokens):
            return lengths.quantiles(np.array(levels), np.array(tokens))
        case FileLengths(path=path):
            return lengths.empirical(getattr(files[path], column))
