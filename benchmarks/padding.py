"""What padding costs on this machine: the articles' four prompts, packed, padded, and all long."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from typing import Any

from executor.execute import Engine, Machine
from executor.grid import Cell
from executor.profiler import Profiler
from sim.models import load_model

PROMPTS = (128, 256, 384, 2048)


def figures(engine: Engine, prompts: Sequence[int], repeats: int) -> dict[str, Any]:
    """Medians of the prompts packed, padded, and all of full width, taken in turn."""
    widest, chunks = max(prompts), tuple((0, n) for n in prompts)
    cells = {
        "packed": Cell("packed", chunks),
        "padded": Cell("padded", chunks, width=widest),
        "packed_full_width": Cell("full", ((0, widest),) * len(prompts)),
    }
    profiler = Profiler(engine, list(cells.values()))
    for cell in cells.values():
        profiler.time(cell)
    times: dict[str, list[float]] = {name: [] for name in cells}
    for _ in range(repeats):  # taken in turn, so that drift falls on all alike
        for name, cell in cells.items():
            times[name].append(profiler.time(cell).seconds)
    median = {name: statistics.median(t) for name, t in times.items()}
    return {
        "model": engine.shape.name,
        **engine.facts(),
        "prompts": list(prompts),
        "token_efficiency": sum(prompts) / (len(prompts) * widest),
        "packed_over_padded": median["packed"] / median["padded"],
        "padded_over_packed_full_width": median["padded"] / median["packed_full_width"],
        "seconds": median,
        "spread": {n: (max(t) - min(t)) / median[n] for n, t in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    parser.add_argument("--attention")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    machine = Machine(options.device, options.dtype, options.attention)
    result = figures(Engine(load_model(options.model), machine), PROMPTS, options.repeats)
    if options.json:
        print(json.dumps(result))
        return
    print(f"{result['model']} on {result['device']}, {result['dtype']}, prompts {PROMPTS}")
    for name, seconds in result["seconds"].items():
        print(f"  {name:<18} {seconds * 1e3:9.1f} ms  (spread {result['spread'][name]:.0%})")
    print(f"token efficiency                 {result['token_efficiency']:.3f}")
    print(f"packed / padded                  {result['packed_over_padded']:.3f}")
    print(f"padded / packed of full width    {result['padded_over_packed_full_width']:.3f}")


if __name__ == "__main__":
    main()
