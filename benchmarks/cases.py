"""The runs that `bench.py` times: what each replays, under what, and one of them measured.

python benchmarks/cases.py NAME [--traces DIR] [--count N]
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import simpy

import sim.engine
from lengthwise.config import RunConfig
from lengthwise.prepare import Prepared, prepare, requests_of
from policies.compose import NAMED, compose
from serving.core import Core
from serving.recorder import Recorder
from sim.engine import Options, simulate
from traces import Trace, load

TIMEOUTS = 100_000
AZURE = "AzureLLMInferenceTrace_conv.csv"
MOONCAKE = "mooncake_conversation.jsonl"


@dataclass(frozen=True)
class Case:
    """A trace, how fast it arrives, and the flags of the run."""

    trace: str
    rate: float = 1.0
    limit: int | None = None
    repeats: int = 3
    jump: bool = True
    flags: dict[str, Any] = field(default_factory=dict)

    def read(self, folder: str) -> Trace:
        """The requests, at the rate of the case."""
        published = "." in self.trace
        source = str(Path(folder) / self.trace) if published else self.trace
        return load(source, limit=self.limit).at_rate(self.rate)


AT_ONCE = 1e9
FULL = 4.2
"""Times its own rate at which `chat` is all that `chunked-prefill` serves: 23 requests/s."""
BUSY = 0.9 * FULL
OVERLOADED: dict[str, dict[str, Any]] = {
    "fcfs": {},
    "shortest": {"order": "shortest"},
    "priority": {"order": "priority"},
    "continuous": {"policy": "continuous"},
    "bucketing": {"policy": "bucketing"},
}
SMALL = {"max_num_batched_tokens": 512}

CASES: dict[str, Case] = {
    **{f"azure, rate {rate}": Case(AZURE, rate) for rate in (0.5, 1, 4)},
    **{f"azure, rate {rate}, stepped": Case(AZURE, rate, jump=False) for rate in (1, 4, 8)},
    "azure, 4,000 at own rate": Case(AZURE, limit=4000, repeats=5, flags=SMALL),
    "azure, 4,000 at once": Case(AZURE, AT_ONCE, limit=4000, repeats=5, flags=SMALL),
    **{
        f"azure, {name}": Case(AZURE, repeats=1, flags={"policy": name})
        for name in NAMED
        if name != "chunked-prefill"
    },
    "mooncake, prefix caching": Case(MOONCAKE, repeats=1, flags={"enable_prefix_caching": True}),
    "chat, own rate": Case("chat", limit=4000),
    "chat, saturated": Case("chat", AT_ONCE, limit=4000),
    "chat, load 0.9, 100,000": Case("chat", BUSY, 100_000, repeats=1),
    "chat, load 0.9, 1,000,000": Case("chat", BUSY, 1_000_000, repeats=1),
    **{
        f"overload, {name}, {count:,}": Case("chat", 10 * FULL, count, repeats=1, flags=flags)
        for name, flags in OVERLOADED.items()
        for count in (50_000, 500_000)
    },
}


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


def simulation(trace: Trace, ready: Prepared, count: int | None = None) -> tuple[float, Recorder]:
    """CPU seconds of the simulation phase alone, and the full record's recorder."""
    recorder = Recorder()
    core = Core(compose(ready.point, ready.settings, recorder), recorder, None)
    hashed = ready.settings.enable_prefix_caching
    requests = requests_of(trace, ready.settings.block_size, hashed)
    how = Options(depth=2 if ready.settings.async_scheduling else 1, jump=ready.config.jump)
    gc.collect()
    began = time.process_time()
    simulate(islice(requests, count), [(core, recorder)], ready.cost, how)
    return time.process_time() - began, recorder


def timed(run: Callable[[], tuple[float, Recorder]], repeats: int) -> tuple[float, float, Recorder]:
    """Median seconds of a run, median seconds of a bare timeout around it, and what it recorded."""
    seconds, units = [], [bare_timeout()]
    for _ in range(repeats):
        taken, recorder = run()
        seconds.append(taken)
        units.append(bare_timeout())
    return statistics.median(seconds), statistics.median(units), recorder


def measure(name: str, folder: str) -> dict[str, object]:
    """One case, as a line of the table."""
    case = CASES[name]
    trace = case.read(folder)
    ready = prepare(RunConfig.of(jump=case.jump, **case.flags), trace)
    seconds, unit, recorder = timed(lambda: simulation(trace, ready), case.repeats)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = len(recorder.step_columns()["step"])  # as other revisions have it too
    count, events = len(trace), len(recorder.event_rows())
    return {
        "case": name,
        "loop": "sources" if sim.engine.__file__.endswith(".py") else "compiled",
        "requests": count,
        "steps": steps,
        "cpu_s": round(seconds, 3),
        "unit_us": round(unit * 1e6, 3),
        "steps_per_s": round(steps / seconds),
        "requests_per_s": round(count / seconds),
        "events_per_s": round(events / seconds),
        "peak_mb": round(peak_kb / 1e3),
        "timeouts_per_step": round(seconds / unit / steps, 2),
        "timeouts_per_request": round(seconds / unit / count, 1),
        "share_10_20": round(seconds / unit / (10 * steps + 20 * count), 2),
        "share_6_12": round(seconds / unit / (6 * steps + 12 * count), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("case", choices=sorted(CASES))
    parser.add_argument("--traces", default=".")
    parser.add_argument("--count", type=int, help="only simulate so many requests, once")
    args = parser.parse_args()
    if args.count is None:
        print(json.dumps(measure(args.case, args.traces)))
        return
    case = CASES[args.case]
    trace = case.read(args.traces)
    simulation(trace, prepare(RunConfig.of(jump=case.jump, **case.flags), trace), args.count)


if __name__ == "__main__":
    main()
