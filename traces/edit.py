"""Changing a trace: cutting, scaling, merging, spreading ties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traces.rows import tick_of
from traces.trace import Trace


def spread(trace: Trace, seed: int) -> Trace:
    """Requests that share a timestamp, spread uniformly within the clock's tick (seeded).

    Their order in the file is kept among those of one timestamp. The first arrival stays 0.
    """
    tick = tick_of(trace.arrival_s)
    if tick is None:
        return trace.noted("--spread-ties: the times show no tick to spread within, nothing done")
    rng = np.random.default_rng(seed)
    arrival = np.sort(trace.arrival_s + rng.uniform(0, tick, len(trace)))
    arrival -= arrival[0]
    return replace(trace, arrival_s=arrival).noted(f"ties spread within {tick:g} s, seed {seed}")
