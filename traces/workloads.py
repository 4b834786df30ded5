"""Built-in workloads that need no file: lengths and arrivals described by public figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from traces.trace import Trace

DEFAULT_REQUESTS = 1000
LEVELS = (0, 0.05, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.95, 0.99, 0.999, 1)
"""The quantile levels of `Quantiles`."""


@dataclass(frozen=True)
class Quantiles:
    """Token counts by their quantiles at `LEVELS`, straight lines between them."""

    tokens: tuple[int, ...]

    def draw(self, n: int, rng: Generator) -> NDArray[np.int64]:
        """`n` lengths."""
        return np.rint(np.interp(rng.random(n), LEVELS, self.tokens)).astype(np.int64)


@dataclass(frozen=True)
class Lognormal:
    """Lognormal token counts; a draw over `most` is drawn again, so nothing is clipped."""

    median: float
    sigma: float
    """Standard deviation of the logarithm."""
    most: int
    """The longest that is drawn, tokens."""

    def draw(self, n: int, rng: Generator) -> NDArray[np.int64]:
        """`n` lengths of 1 to `most` tokens."""
        lengths = np.zeros(n, np.int64)
        todo = np.arange(n)
        while len(todo):
            drawn = np.rint(rng.lognormal(np.log(self.median), self.sigma, len(todo)))
            lengths[todo] = np.minimum(drawn, self.most + 1).astype(np.int64)
            todo = todo[(lengths[todo] < 1) | (lengths[todo] > self.most)]
        return lengths


@dataclass(frozen=True)
class Workload:
    """Lengths, drawn independently of one another, and Gamma gaps between arrivals."""

    about: str
    prompt: Quantiles | Lognormal
    output: Quantiles | Lognormal
    rate: float
    """Requests a second."""
    cv: float
    """Coefficient of variation of the gaps; 1 is Poisson."""

    def draw(self, requests: int, seed: int) -> Trace:
        """A trace of so many requests; the same seed draws the same."""
        rng = np.random.default_rng(seed)
        shape = 1 / self.cv**2
        gaps = rng.gamma(shape, 1 / (self.rate * shape), requests - 1)
        arrival = np.concatenate([[0.0], np.cumsum(gaps)])
        prompt = self.prompt.draw(requests, rng)
        output = self.output.draw(requests, rng)
        name = next(name for name, workload in WORKLOADS.items() if workload is self)
        note = f"built-in workload {name}: {self.about}; {requests:,} requests, seed {seed}"
        return Trace(arrival, prompt, output, name=name, notes=(note,))


WORKLOADS = {
    # Azure's 2023 conversation trace (Patel et al., Splitwise, ISCA 2024): 19,366 requests in
    # 3,502 s. Its quantiles of prompt and output, its rate, and the CV of its gaps.
    "chat": Workload(
        "lengths and rate of Azure's 2023 conversation trace",
        prompt=Quantiles((2, 181, 207, 396, 703, 1020, 1071, 1189, 2734, 4083, 4142, 6179, 14050)),
        output=Quantiles((7, 41, 54, 85, 103, 129, 177, 395, 424, 451, 601, 954, 1000)),
        rate=5.53,
        cv=1.09,
    ),
    # Azure's 2023 code trace (same paper): 8,819 requests in an hour; median prompt 1,500 and
    # output 13. Sigma gives the means 2,048 and 28 (a lognormal's mean is
    # median × exp(sigma²/2)). The limits, and Poisson gaps, are ours.
    "code": Workload(
        "lengths and rate of Azure's 2023 code trace",
        prompt=Lognormal(1500, 0.789, 16_384),
        output=Lognormal(13, 1.239, 2_048),
        rate=2.45,
        cv=1.0,
    ),
    # Mooncake's conversation trace (Qin et al., FAST 2025): 12,031 requests in 3,537 s. Its
    # quantiles and rate. Its times come in groups about 3 s apart, which says nothing of the
    # gaps; they are taken as Poisson.
    "long-context": Workload(
        "lengths and rate of Mooncake's conversation trace",
        prompt=Quantiles(
            (891, 901, 964, 2306, 4993, 6909, 9570, 15367, 27367, 39550, 85400, 121301, 126195)
        ),
        output=Quantiles((1, 10, 24, 156, 291, 350, 399, 472, 597, 698, 1119, 2000, 2000)),
        rate=3.40,
        cv=1.0,
    ),
}
