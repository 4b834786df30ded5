"""How much of a run's time is not the model's: planning, inputs and recording, a step."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import numpy as np

from executor.execute import Engine, measure
from lengthwise.prepare import requests_of
from policies.compose import NAMED, Settings
from sim.models import load_model
from traces.trace import Trace


def figures(engine: Engine, running: int, output: int) -> dict[str, float]:
    """Decode with all seats taken: what the loop took beside the model."""
    n = 2 * running
    prompts = np.random.default_rng(0).integers(32, 257, n)
    trace = Trace(np.zeros(n), prompts, np.full(n, output), name="overhead")
    settings = replace(Settings(8192), max_num_seqs=running)
    requests = requests_of(trace, engine.block_size, False)
    found = measure(engine, trace, requests, NAMED["chunked-prefill"], settings)
    spent, steps = found.spent, len(found.recorder)
    return {
        "running": running,
        "steps": steps,
        "wall_s": round(spent.wall_s, 3),
        "model_s": round(spent.model_s, 3),
        "outside_share": round(spent.outside_s / spent.wall_s, 4),
        "outside_ms_per_step": round(spent.outside_s / steps * 1e3, 3),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--running", type=int, default=32)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = figures(Engine(load_model(args.model)), args.running, args.output)
    if args.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:>20} {value}")


if __name__ == "__main__":
    main()
