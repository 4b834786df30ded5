"""Length distributions by their inverse, and pairs of them with a given rank correlation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from traces.errors import TraceError
from traces.rows import MAX_TOKENS

Inverse = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Token counts, not yet rounded, at shares from 0 to 1."""


def fixed(tokens: int) -> Inverse:
    """Always the same length."""
    return lambda u: np.full(len(u), float(tokens))


def uniform(low: int, high: int) -> Inverse:
    """Whole numbers from `low` to `high`, both included, equally often."""
    return lambda u: np.minimum(low + np.floor(u * (high - low + 1)), high)


def lognormal(mean: float, sigma: float, most: int | None = None) -> Inverse:
    """Lognormal with this mean before truncation; `sigma` is the logarithm's standard deviation.

    The median is mean / exp(sigma² / 2). Truncated, not clipped, below half a token and above
    `most`.
    """
    from scipy.special import ndtr, ndtri

    mu = math.log(mean) - sigma * sigma / 2
    if sigma == 0:
        return lambda u: np.full(len(u), mean)
    low = float(ndtr((math.log(0.5) - mu) / sigma))
    high = 1.0 if most is None else float(ndtr((math.log(most + 0.5) - mu) / sigma))
    return lambda u: np.exp(mu + sigma * ndtri(low + u * (high - low)))


def zipf(exponent: float, most: int) -> Inverse:
    """P(k) proportional to k^−exponent for k from 1 to `most`."""
    weights = np.arange(1, most + 1, dtype=np.float64) ** -exponent
    shares = np.cumsum(weights) / weights.sum()
    return lambda u: np.minimum(np.searchsorted(shares, u, side="right") + 1.0, most)


def pareto(alpha: float, least: int, most: int | None = None) -> Inverse:
    """P(X > x) = (least / x)^alpha above `least`; truncated above `most`."""
    high = 1.0 if most is None else 1 - (least / (most + 0.5)) ** alpha
    return lambda u: least * (1 - u * high) ** (-1 / alpha)


def quantiles(levels: NDArray[np.float64], tokens: NDArray[np.float64]) -> Inverse:
    """Straight lines between `tokens` at `levels` (both rising, levels from 0 to 1)."""
    return lambda u: np.interp(u, levels, tokens)


def empirical(tokens: NDArray[np.int64]) -> Inverse:
    """Each of `tokens` equally often."""
    ordered = np.sort(tokens).astype(np.float64)
    return lambda u: ordered[np.minimum((u * len(ordered)).astype(np.int64), len(ordered) - 1)]


def whole(inverse: Inverse, u: NDArray[np.float64], what: str) -> NDArray[np.int64]:
    """Lengths at shares `u`, rounded.

    Raises:
        TraceError: one is over 10^9 tokens: the distribution needs an upper limit.
    """
    tokens = np.rint(inverse(u))
    if len(tokens) and not tokens.max() <= MAX_TOKENS:
        raise TraceError(
            f"{what}: draws lengths over 10^9 tokens. Give the distribution an upper limit."
        )
    return tokens.astype(np.int64)


def pairs(
    n: int, rank_correlation: float | None, rng: Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares from 0 to 1 for prompts and outputs, shape [n] each.

    Without a correlation they are independent draws. With one they come from a Gaussian copula
    (Pearson's r = 2 sin(π ρ / 6) for Spearman's ρ) and are spread evenly, one in each n-th, so that
    the margins have the distributions' quantiles at any n.
    """
    if rank_correlation is None:
        return rng.random(n), rng.random(n)
    r = 2 * math.sin(math.pi * rank_correlation / 6)
    first = rng.standard_normal(n)
    second = r * first + math.sqrt(1 - r * r) * rng.standard_normal(n)
    return _even(first, rng), _even(second, rng)


def _even(values: NDArray[np.float64], rng: Generator) -> NDArray[np.float64]:
    """Values in the order of `values`, one in each n-th of 0 to 1."""
    ranks = np.empty(len(values))
    ranks[np.argsort(values)] = np.arange(len(values))
    return (ranks + rng.random(len(values))) / len(values)
