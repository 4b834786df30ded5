"""A model so small that a test can run it thousands of times, and mixed requests for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from executor.execute import Engine, Machine, Measured, measure
from lengthwise.prepare import blocks_per_hash, requests_of
from policies.compose import KNOWN, Point, Settings
from serving.recorder import Recorder
from sim.models import Model
from traces.trace import BlockHashes, Trace

NANO = Model("nano", 32, 2, 4, 2, 8, 64, 211, 512, source="tests")


def engine(device: str = "cpu", dtype: str = "fp32") -> Engine:
    """Weights large enough that what a token attends to decides what follows it."""
    made = Engine(NANO, Machine(device, dtype))
    for name, weight in made.model.named_parameters():
        if "norm" not in name:
            weight.data.mul_(12)
    return made


def mixed(n: int = 40, seed: int = 3, hash_tokens: int = 0) -> Trace:
    """Short and long prompts and outputs, some without output; with hashes, in groups of four."""
    random = np.random.default_rng(seed)
    prompts = np.where(
        random.random(n) < 0.3, random.integers(60, 150, n), random.integers(1, 40, n)
    )
    outputs = random.integers(0, 40, n)
    if hash_tokens:
        prompts += 2 * hash_tokens
    trace = Trace(np.zeros(n), prompts.astype(np.int64), outputs.astype(np.int64), name="mixed")
    return replace(trace, hashes=_hashes(trace, hash_tokens)) if hash_tokens else trace


def _hashes(trace: Trace, size: int) -> BlockHashes:
    rows = []
    for i, prompt in enumerate(trace.prompt_tokens):
        blocks = np.arange(-(-int(prompt) // size))
        rows.append(np.where(blocks < 2, 10 * (i % 4) + blocks, 1000 * (i + 1) + blocks))
    offsets = np.cumsum([0, *(len(r) for r in rows)])
    return BlockHashes(np.concatenate(rows), offsets, size)


def run(
    engine: Engine,
    trace: Trace,
    point: Point | str,
    override: int | None = None,
    recorder: Recorder | None = None,
    **settings: Any,
) -> Measured:
    """A trace under a policy, eight seats unless told otherwise."""
    asked: dict[str, Any] = {
        "max_model_len": 256,
        "max_num_seqs": 8,
        "bucket_bounds": (32, 64, 256),
    } | settings
    how = Settings(**asked)
    how = replace(how, blocks_per_hash=blocks_per_hash(trace, engine.block_size))
    requests = requests_of(trace, engine.block_size, how.enable_prefix_caching)
    named = KNOWN[point] if isinstance(point, str) else point
    return measure(engine, trace, requests, named, how, override, recorder=recorder)


@torch.inference_mode()
def alone(engine: Engine, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens by definition: the whole sequence anew for every token, and no cache."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1)

    known = list(prompt)
    for _ in range(count):
        places = torch.arange(len(known), dtype=torch.int32, device=engine.device)
        ids = torch.tensor(known, dtype=torch.int32, device=engine.device)
        known.append(int(engine.model(ids, places, attend, places[-1:]).argmax()))
    return known[len(prompt) :]
