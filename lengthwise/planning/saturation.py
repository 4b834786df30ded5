"""Does a run keep up with its requests? By the growth of the queue, whatever the latencies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lengthwise.levels import waiting
from serving.record import Record

WINDOWS = 20
"""Windows of the time in which requests arrive."""
SHARE = 0.01
"""Of all requests: by so many the queue may be longer at the end than at the start."""
SIGMAS = 2.5
"""Standard errors by which the slope must exceed 0; about 99%, one-sided, of 18 degrees."""
FEWEST = 100
"""Requests from which a growth can be told from chance."""


@dataclass(frozen=True)
class Growth:
    """A straight line through the number of waiting requests."""

    share: float
    """How much longer the queue is at the end of the arrivals, as a share of all requests."""
    sigmas: float
    """The slope in standard errors."""

    @property
    def saturated(self) -> bool:
        """Whether requests arrive faster than they are served."""
        return self.share > SHARE and self.sigmas > SIGMAS


def growth(record: Record) -> Growth:
    """How the queue grows while requests arrive: least squares through means of windows.

    Under a load above 1 the queue grows by what is not served, a share of all that arrives; below
    1 its length does not depend on time. A trace too short to tell does not grow.
    """
    from scipy.stats import linregress

    arrivals = record.requests["arrival_s"].to_numpy()
    span = float(arrivals[-1] - arrivals[0]) if len(arrivals) else 0.0
    if len(arrivals) < FEWEST or span <= 0:
        return Growth(0.0, 0.0)
    edges = np.linspace(arrivals[0], arrivals[-1], WINDOWS + 1)
    line = linregress((edges[1:] + edges[:-1]) / 2, waiting(record).mean(edges))
    sigmas = line.slope / line.stderr if line.stderr > 0 else 0.0
    return Growth(float(line.slope * span / len(arrivals)), float(sigmas))
