"""Tokens a second of `continuous` against `transformers` generate in static batches, one run."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from executor.execute import Engine, Machine, measure
from executor.tokens import Tokens
from lengthwise.prepare import requests_of
from policies.compose import NAMED, Settings
from sim.models import Model, load_model
from traces.trace import Trace


def checkpoint(shape: Model, folder: Path) -> Any:
    """A random checkpoint of a built-in model, and `transformers`' model of it."""
    config = LlamaConfig(
        hidden_size=shape.hidden, intermediate_size=shape.intermediate, vocab_size=shape.vocab,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, head_dim=shape.head_dim,
        num_key_value_heads=shape.kv_heads, max_position_embeddings=shape.max_positions,
        tie_word_embeddings=shape.tied_embeddings, bos_token_id=None, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)
    model.eval()
    model.save_pretrained(folder)
    return model


class Taken(NamedTuple):
    """Seconds by the wall clock, and of CPU time, which other programs disturb less."""

    wall: float
    cpu: float


def timed(work: Callable[[], object]) -> Taken:
    """What `work` takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Taken(time.perf_counter() - wall, time.process_time() - cpu)


def generate(model: Any, prompts: list[Any], outputs: list[int], batch: int) -> None:
    """Static batches through `transformers`, each to its longest output."""
    for first in range(0, len(prompts), batch):
        rows = prompts[first : first + batch]
        width = max(len(r) for r in rows)
        ids, mask = torch.zeros(2, len(rows), width, dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, width - len(row) :] = torch.from_numpy(row)
            mask[i, width - len(row) :] = 1
        most = max(outputs[first : first + batch])
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=mask, do_sample=False, max_new_tokens=most, min_new_tokens=most
            )


def ours(engine: Engine, trace: Trace, seats: int) -> None:
    """The same requests under `continuous`, warm-up included."""
    settings = Settings(1024, max_num_seqs=seats)
    measure(
        engine, trace, requests_of(trace, engine.block_size, False), NAMED["continuous"], settings
    )


def main() -> None:
    """Requests with outputs spread 8 to 256, and one alone; all in turn, a few times over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    random, n = np.random.default_rng(0), args.requests
    outputs = random.permutation(np.linspace(8, 256, n).round().astype(np.int64))
    spread = Trace(np.zeros(n), random.integers(32, 257, n), outputs, name="spread")
    single = Trace(np.zeros(1), np.array([128]), np.array([256]), name="single")
    with tempfile.TemporaryDirectory() as name:
        theirs = checkpoint(load_model(args.model), Path(name))
        engine = Engine(load_model(name), Machine(weights=Path(name)))
    rows, alone = (_prompts(engine, t) for t in (spread, single))
    runs: dict[str, Callable[[], None]] = {
        "8_seats": lambda: ours(engine, spread, 8),
        "generate_8": lambda: generate(theirs, rows, outputs.tolist(), 8),
        "64_seats": lambda: ours(engine, spread, 64),
        "one": lambda: ours(engine, single, 1),
        "generate_one": lambda: generate(theirs, alone, [256], 1),
    }
    generate(theirs, rows[:8], [4] * 8, 8)  # warm-up
    times: dict[str, list[Taken]] = {label: [] for label in runs}
    for _ in range(args.repeats):  # in turn, so that drift falls on all alike
        for label, run in runs.items():
            times[label].append(timed(run))
    figures = _figures(times, int(outputs.sum()))
    if args.json:
        print(json.dumps(figures))
    else:
        for label, value in figures.items():
            print(f"{label:>26} {value}")


def _figures(times: dict[str, list[Taken]], tokens: int) -> dict[str, float]:
    """Medians over the repeats; ratios are medians of the ratios within one repeat."""
    figures = {
        f"{label}_tokens_per_s": (256 if "one" in label else tokens)
        / statistics.median(t.wall for t in taken)
        for label, taken in times.items()
    }
    for ours_, theirs in (("8_seats", "generate_8"), ("64_seats", "generate_8"),
                          ("one", "generate_one")):  # fmt: skip
        for clock in Taken._fields:
            pairs = zip(times[theirs], times[ours_], strict=True)
            ratios = [getattr(a, clock) / getattr(b, clock) for a, b in pairs]
            figures[f"ratio_{ours_}_{clock}"] = statistics.median(ratios)
    return {name: round(value, 2) for name, value in figures.items()}


def _prompts(engine: Engine, trace: Trace) -> list[Any]:
    tokens = Tokens.of(trace, engine.shape.vocab)
    return [tokens.prompt(i).astype(np.int64) for i in range(len(trace))]


if __name__ == "__main__":
    main()
