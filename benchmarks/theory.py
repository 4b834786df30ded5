"""Two million Poisson arrivals at one server against queueing theory.

    python benchmarks/theory.py [--requests 2000000] [--json]

One seat, one output token and a fixed step make the engine an M/D/1 queue: the mean wait is
ρ s / (2 (1 − ρ)) for a step of s seconds at load ρ (Pollaczek-Khinchine).
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from lengthwise.config import RunConfig
from lengthwise.prepare import prepare, requests_of
from policies.compose import compose
from serving.core import Core
from serving.recorder import ADMIT, Recorder
from sim.engine import simulate
from traces import Trace

STEP = 0.05


def waits(arrivals: np.ndarray) -> np.ndarray:
    """Seconds that each request waits, from our simulation."""
    ones = np.ones(len(arrivals), np.int64)
    trace = Trace(arrivals - arrivals[0], ones, ones)
    ready = prepare(RunConfig.of(cost="fixed", step_ms=STEP * 1e3, max_num_seqs=1), trace)
    recorder = Recorder()
    core = Core(compose(ready.point, ready.settings, recorder), recorder, None)
    simulate(requests_of(trace, 16, False), [(core, recorder)], ready.cost)
    events = recorder.event_rows()
    admitted = events[events[:, 2] == ADMIT]
    starts = np.empty(len(arrivals))
    starts[admitted[:, 1]] = recorder.step_columns()["start_s"][admitted[:, 0]]
    return starts - trace.arrival_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=2_000_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for load in (0.5, 0.8):
        gaps = np.random.default_rng(0).exponential(STEP / load, args.requests)
        mean = float(waits(np.cumsum(gaps)).mean())
        theory = load * STEP / (2 * (1 - load))
        rows.append(
            {
                "load": load,
                "mean_wait_ms": mean * 1e3,
                "theory_ms": theory * 1e3,
                "error_pct": 100 * (mean / theory - 1),
            }
        )
    if args.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("  ".join(f"{name} {value:.4g}" for name, value in row.items()))


if __name__ == "__main__":
    main()
