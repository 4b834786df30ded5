"""Simulation speed in units of bare SimPy timeouts, taken in turns in one process.

    python benchmarks/speed.py TRACE [--json]

The unit is the time of one bare timeout: a process that does nothing but wait, a million times over
in all. The machine's speed drifts, so every run of ours stands between two of the unit, and the
figure is the median over the repeats.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable

import simpy

from lengthwise.config import RunConfig
from lengthwise.prepare import Prepared, prepare, requests_of
from policies.compose import compose
from serving.core import Core
from serving.recorder import Recorder
from sim.engine import Options, simulate
from traces import Trace, load

TIMEOUTS = 100_000


def bare_timeout() -> float:
    """CPU seconds of one SimPy timeout that does nothing else."""

    def wait(env: simpy.Environment):
        for _ in range(TIMEOUTS):
            yield env.timeout(1.0)

    env = simpy.Environment()
    env.process(wait(env))
    began = time.process_time()
    env.run()
    return (time.process_time() - began) / TIMEOUTS


def simulation(trace: Trace, ready: Prepared, how: Options) -> tuple[float, int]:
    """CPU seconds of the simulation phase alone, full record kept, and its steps."""
    recorder = Recorder()
    core = Core(compose(ready.point, ready.settings, recorder), recorder, None)
    hashed = ready.settings.enable_prefix_caching
    requests = requests_of(trace, ready.settings.block_size, hashed)
    gc.collect()
    began = time.process_time()
    simulate(requests, [(core, recorder)], ready.cost, how)
    return time.process_time() - began, len(recorder.step_columns()["step"])


def measure(run: Callable[[], tuple[float, int]], repeats: int) -> tuple[float, float, int]:
    """Median seconds of a run, median seconds of a bare timeout around it, and its steps."""
    seconds, units, steps = [], [bare_timeout()], 0
    for _ in range(repeats):
        taken, steps = run()
        seconds.append(taken)
        units.append(bare_timeout())
    return statistics.median(seconds), statistics.median(units), steps


def case(name: str, trace: Trace, jump: bool, repeats: int, **flags: object) -> dict[str, object]:
    """One line of the table."""
    ready = prepare(RunConfig.of(**flags), trace)
    how = Options(depth=2 if ready.settings.async_scheduling else 1, jump=jump)
    seconds, unit, steps = measure(lambda: simulation(trace, ready, how), repeats)
    count = len(trace)
    return {
        "case": name,
        "jump": jump,
        "requests": count,
        "steps": steps,
        "seconds": round(seconds, 3),
        "unit_us": round(unit * 1e6, 3),
        "steps_per_s": round(steps / seconds),
        "requests_per_s": round(count / seconds),
        "timeouts_per_step": round(seconds / unit / steps, 2),
        "timeouts_per_request": round(seconds / unit / count, 1),
        "share_of_10_a_step_20_a_request": round(seconds / unit / (10 * steps + 20 * count), 2),
        "share_of_6_a_step_12_a_request": round(seconds / unit / (6 * steps + 12 * count), 2),
    }


def cases(trace: Trace, repeats: int) -> list[dict[str, object]]:
    """The trace at three rates, stepped and jumped; then a part of it under a small budget."""
    table = [
        case(f"rate {scale}", trace.at_rate(scale), jump, repeats)
        for scale in (1, 4, 8)
        for jump in (False, True)
    ]
    part = trace.head(4000)
    burst = part.at_rate(1e9)
    for name, requests in (("4,000, own rate", part), ("4,000 at once", burst)):
        table.append(case(name, requests, True, repeats, max_num_batched_tokens=512))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    table = cases(load(args.trace), args.repeats)
    if args.json:
        print(json.dumps(table))
        return
    import pandas as pd

    print(pd.DataFrame(table).to_string(index=False))


if __name__ == "__main__":
    main()
