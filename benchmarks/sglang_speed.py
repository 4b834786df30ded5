#!/usr/bin/env python3
"""How fast SGLang's planner steps beside vLLM's, on the same saturated input.

    python benchmarks/sglang_speed.py [--requests N] [--repeat N]

Every request waits from the start, memory and seats are always spoken for, and a step takes the
same time under both, so that what is measured is the planning. Steps are not the same in number:
SGLang's prefills go alone. So the figure is steps a CPU second. The machine's speed drifts, so
every run stands beside two of `chunked-prefill`, without and with prefix caching, and the figures
are medians over the repeats.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from policies.admission import Limits
from policies.continuous import Continuous
from policies.sglang import Sglang, SglangLimits
from serving.blocks import Blocks
from serving.core import Core, Planner
from serving.prefix import PrefixBlocks
from serving.queue import Fifo
from serving.recorder import Recorder
from serving.request import Request
from sim.engine import Options, simulate
from sim.fixed import FixedCost

POOL = 400_000  # KV tokens, as of an 8B model on 80 GB
SEATS = 256


def requests(count: int) -> Iterator[Request]:
    """Lengths like a chat's, all at once."""
    rng = random.Random(1)
    for index in range(count):
        prompt = min(8000, int(rng.lognormvariate(6.5, 1.0)) + 1)
        output = min(1500, int(rng.lognormvariate(5.3, 0.8)) + 1)
        yield Request(index, 0.0, prompt, output)


LIMITS = Limits(max_num_batched_tokens=8192, max_num_seqs=SEATS)


def plain(recorder: Recorder) -> Planner:
    """`chunked-prefill`."""
    return Continuous(LIMITS, Blocks(POOL // 16, 16), Fifo(), recorder)


def caching(recorder: Recorder) -> Planner:
    """`chunked-prefill` with prefix caching, which finds nothing here."""
    return Continuous(LIMITS, PrefixBlocks(POOL // 16, 16, 1), Fifo(), recorder)


SGLANG = SglangLimits(
    max_total_tokens=POOL, context_len=16_384, max_running_requests=SEATS, page_size=1
)
VARIANTS: dict[str, Callable[[Recorder], Planner]] = {
    "chunked-prefill": plain,
    "sglang": lambda r: Sglang(SGLANG, r),
    "sglang, radix cache off": lambda r: Sglang(replace(SGLANG, disable_radix_cache=True), r),
    "sglang, pages of 16": lambda r: Sglang(replace(SGLANG, page_size=16), r),
    "sglang, mixed, radix cache off": lambda r: Sglang(
        replace(SGLANG, enable_mixed_chunk=True, disable_radix_cache=True), r
    ),
    "sglang, mixed chunk": lambda r: Sglang(replace(SGLANG, enable_mixed_chunk=True), r),
    "sglang, simulated admission": lambda r: Sglang(
        replace(SGLANG, disable_radix_cache=True, ignore_eos=True), r
    ),
    "sglang, memory short": lambda r: Sglang(
        replace(SGLANG, max_total_tokens=POOL // 4, schedule_conservativeness=0.1), r
    ),
}


def measure(make: Callable[[Recorder], Planner], count: int, jump: bool) -> tuple[int, float]:
    """Steps of one run, and steps a CPU second."""
    recorder = Recorder()
    core = Core(make(recorder), recorder)
    waiting = list(requests(count))
    gc.collect()
    begin = time.process_time()
    simulate(iter(waiting), [(core, recorder)], FixedCost(0.02), Options(jump=jump))
    seconds = time.process_time() - begin
    return len(recorder), len(recorder) / seconds


def main() -> None:
    """Measure all variants, stepping and jumping."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    for jump in (False, True):
        mode = "jumping" if jump else "stepping"
        print(f"{mode:32} {'steps':>8} {'steps/s':>10} {'to plain':>9} {'caching':>9}")
        for name, make in VARIANTS.items():
            speeds, steps = [], 0
            beside: list[list[float]] = [[], []]
            for _ in range(arguments.repeat):
                bases = [measure(base, arguments.requests, jump)[1] for base in (plain, caching)]
                steps, speed = measure(make, arguments.requests, jump)
                speeds.append(speed)
                for shares, base in zip(beside, bases, strict=True):
                    shares.append(speed / base)
            speed, (to_plain, to_caching) = (
                statistics.median(speeds),
                map(statistics.median, beside),
            )
            print(f"{name:32} {steps:8,} {speed:10,.0f} {to_plain:9.2f} {to_caching:9.2f}")


if __name__ == "__main__":
    main()
