"""Tokens a second of `continuous` against `transformers` generate in static batches, one run."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

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


def generate(model: Any, prompts: list[Any], outputs: list[int], batch: int) -> float:
    """Seconds that static batches take, each to its longest output."""
    begin = time.perf_counter()
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
    return time.perf_counter() - begin


def ours(engine: Engine, trace: Trace, seats: int) -> float:
    """Seconds that `continuous` takes."""
    settings = Settings(1024, max_num_seqs=seats)
    requests = requests_of(trace, engine.block_size, False)
    return measure(engine, trace, requests, NAMED["continuous"], settings).spent.wall_s


def main() -> None:
    """64 requests, outputs spread 8 to 256, and one alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    random = np.random.default_rng(0)
    outputs = random.permutation(np.linspace(8, 256, 64).round().astype(np.int64))
    trace = Trace(np.zeros(64), random.integers(32, 257, 64), outputs, name="spread")
    single = Trace(np.zeros(1), np.array([128]), np.array([256]), name="single")
    shape = load_model(args.model)
    with tempfile.TemporaryDirectory() as name:
        theirs = checkpoint(shape, Path(name))
        engine = Engine(load_model(name), Machine(weights=Path(name)))
    figures: dict[str, float] = {}
    for label, asked, seats in (("8_seats", trace, 8), ("64_seats", trace, 64), ("one", single, 1)):
        figures[f"{label}_tokens_per_s"] = int(asked.output_tokens.sum()) / ours(
            engine, asked, seats
        )
    rows = _prompts(engine, trace)
    generate(theirs, rows[:8], [4] * 8, 8)  # warm-up
    total = int(outputs.sum())
    figures["generate_8_tokens_per_s"] = total / generate(theirs, rows, outputs.tolist(), 8)
    alone = _prompts(engine, single)
    figures["generate_one_tokens_per_s"] = 256 / generate(theirs, alone, [256], 1)
    figures["ratio_8_seats"] = figures["8_seats_tokens_per_s"] / figures["generate_8_tokens_per_s"]
    figures["ratio_64_seats"] = (
        figures["64_seats_tokens_per_s"] / figures["generate_8_tokens_per_s"]
    )
    figures["ratio_one"] = figures["one_tokens_per_s"] / figures["generate_one_tokens_per_s"]
    figures = {name: round(value, 2) for name, value in figures.items()}
    if args.json:
        print(json.dumps(figures))
    else:
        for label, value in figures.items():
            print(f"{label:>26} {value}")


def _prompts(engine: Engine, trace: Trace) -> list[Any]:
    tokens = Tokens.of(trace, engine.shape.vocab)
    return [tokens.prompt(i).astype(np.int64) for i in range(len(trace))]


if __name__ == "__main__":
    main()
