"""How close the model's steps come to the device's limits, and what padding and the loop cost.

A decode step against the bytes it must move at the rate of a copy; a prefill against the rate of a
matrix product of its dtype; packed against padded prompts; time a step outside the model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks import loop_overhead, padding
from benchmarks.gpu_table import figure_lines
from executor.execute import Engine, Machine
from executor.grid import Cell
from executor.model import DTYPES
from executor.profiler import Profiler
from sim.models import load_model
from sim.useful import useful_bytes, useful_flops


@dataclass(frozen=True)
class Sizes:
    """How large the measured things are."""

    rows: int
    context: int
    prefill: int
    matrix: int
    copied: int  # bytes
    prompts: tuple[int, ...]


LARGE = Sizes(64, 1024, 8192, 8192, 8 << 30, padding.PROMPTS)
SMALL = Sizes(2, 64, 128, 256, 16 << 20, (8, 16, 24, 128))
"""To try the script on a CPU: the figures mean little."""


def timed(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median seconds of `work`, after three runs that do not count."""
    seconds = []
    for i in range(3 + repeats):
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if i >= 3:
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def copy_rate(device: torch.device, size: int, repeats: int) -> float:
    """Bytes/s of a copy within the device, `size` bytes read and written together."""
    source, target = torch.randint(255, (2, size // 2), dtype=torch.uint8, device=device)
    return size / timed(lambda: target.copy_(source), device, repeats)


def matmul_rate(device: torch.device, dtype: torch.dtype, n: int, repeats: int) -> float:
    """FLOP/s of a product of two matrices of side `n`, of random numbers: zeros are quicker."""
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    return 2 * n**3 / timed(lambda: a @ b, device, repeats)


def figures(engine: Engine, sizes: Sizes, repeats: int) -> dict[str, float]:
    """The steps' times, and the share of the limits that they reach."""
    moved = copy_rate(engine.device, sizes.copied, repeats)
    flops = matmul_rate(engine.device, DTYPES[engine.dtype], sizes.matrix, repeats)
    if engine.device.type == "cuda":
        torch.cuda.empty_cache()
    cells = {
        "decode": Cell("decode", contexts=(sizes.context,) * sizes.rows),
        "prefill": Cell("prefill", ((0, sizes.prefill),)),
    }
    profiler = Profiler(engine, list(cells.values()))
    times: dict[str, list[float]] = {name: [] for name in cells}
    for i in range(3 + repeats):
        for name, cell in cells.items():
            timing = profiler.time(cell)
            if i >= 3:
                times[name].append(timing.seconds)
    median = {name: statistics.median(t) for name, t in times.items()}
    columns = {
        name: {k: np.array([v]) for k, v in cell.features._asdict().items()}
        for name, cell in cells.items()
    }
    must = float(useful_bytes(engine.shape, engine.dtype, engine.dtype, columns["decode"])[0])
    work = float(useful_flops(engine.shape, columns["prefill"])[0])
    return {
        "copy_gbytes_per_s": moved / 1e9,
        "matmul_tflops": flops / 1e12,
        "decode_ms": median["decode"] * 1e3,
        "decode_gbytes": must / 1e9,
        "decode_of_copy": must / median["decode"] / moved,
        "prefill_ms": median["prefill"] * 1e3,
        "prefill_tflop": work / 1e12,
        "prefill_of_matmul": work / median["prefill"] / flops,
    }


def main() -> None:
    """Measure everything on one loaded model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype")
    parser.add_argument("--attention")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--small", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--json", action="store_true", help="one line instead of a table")
    asked = parser.parse_args()
    sizes = SMALL if asked.small else LARGE
    engine = Engine(load_model(asked.model), Machine(asked.device, asked.dtype, asked.attention))
    found = figures(engine, sizes, asked.repeats)
    overhead = loop_overhead.figures(engine, running=sizes.rows // 2, output=sizes.rows)
    found["loop_outside_ms_per_step"] = overhead["outside_ms_per_step"]
    found["loop_outside_share"] = overhead["outside_share"]
    result = padding.figures(engine, sizes.prompts, repeats=max(asked.repeats // 3, 3))
    found |= {k: result[k] for k in ("packed_over_padded", "padded_over_packed_full_width")}
    if asked.json:
        print(json.dumps({"model": engine.shape.name, **engine.facts(), **found}))
    else:
        print(f"{engine.shape.name} on {engine.facts()}")
        print("\n".join(figure_lines(found)))


if __name__ == "__main__":
    main()
