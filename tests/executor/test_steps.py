"""Steps as policies plan them: the same tokens under all, and what is counted is computed."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from executor.execute import PageBlocks
from executor.flash import FlashAttention
from executor.model import Transformer
from executor.sdpa import Sdpa
from executor.steps import Steps
from executor.tokens import Tokens
from executor.weights import randomise
from policies.compose import NAMED, Settings, choose, compose
from serving.core import Core
from serving.recorder import Recorder
from serving.request import Request
from serving.step import Packed, Step
from sim.models import MODELS
from tests.executor import standins
from traces.trace import BlockHashes

SHAPE = replace(MODELS["tiny"], layers=2, vocab=512)
MAX_MODEL_LEN = 256
BLOCK = 16


@lru_cache
def model(dtype: torch.dtype = torch.float32) -> Transformer:
    return randomise(Transformer(SHAPE, dtype))


def settings(**changes) -> Settings:
    usual = {"max_num_seqs": 8, "usable_blocks": 200, "block_size": BLOCK}
    return Settings(MAX_MODEL_LEN, **{**usual, **changes})


class Run:
    """An offline run of a policy on the engine, step after step."""

    def __init__(self, prompts, outputs, how, policy, layout=None, hashes=None, backend=None,
                 only=None, graphs=(), dtype=torch.float32, block=BLOCK):  # fmt: skip
        tokens = Tokens(prompts, outputs, SHAPE.vocab, 5, hashes)
        self.steps = Steps(
            model(dtype), backend or Sdpa(), tokens, how.usable_blocks, block, MAX_MODEL_LEN,
            graphs, record=lambda run: run,
        )  # fmt: skip
        recorder = Recorder()
        self.planner = compose(choose(policy, layout), how, recorder)
        if how.enable_prefix_caching:
            self.planner.blocks = PageBlocks(how.usable_blocks, block)
        self.planner.blocks.listener = self.steps.pager
        self.core = Core(self.planner, recorder, MAX_MODEL_LEN)
        for i in range(len(prompts)) if only is None else only:
            full = () if hashes is None else tuple(hashes.row(i)[: prompts[i] // block].tolist())
            request = Request(i, 0.0, int(prompts[i]), int(outputs[i]), 0, full)
            assert self.core.add(request) is None
        self.preemptions = self.slots = self.pairs = self.tokens = 0
        now = 0.0
        while self.core.unfinished:
            now += 1.0  # longer than any wait to group
            step = self.core.plan(now)
            if isinstance(step, Step):
                self.step(step)
        self.outputs = [tokens.output(i).tolist() for i in range(len(prompts))]

    def step(self, step: Step) -> None:
        self.steps.run(step)
        held = self.steps.cache.pages - self.steps.pager.free
        if isinstance(step.layout, Packed) and not self.planner.blocks.caching:
            assert held <= step.blocks_used
        f = step.features
        self.preemptions += len(step.preempted)
        self.slots += f.prefill_slots + f.decode_slots
        self.pairs += f.prefill_computed_pairs + f.decode_computed_pairs
        self.tokens += f.prefill_tokens + f.decode_tokens
        self.core.complete(step)


def lengths(seed: int, count: int = 40):
    random = np.random.default_rng(seed)
    return random.integers(1, 150, count), random.integers(0, 40, count)


PROMPTS, OUTPUTS = lengths(0)


@lru_cache
def alone() -> list[list[int]]:
    """What each request generates with nobody beside it."""
    tokens = []
    for i in range(len(PROMPTS)):
        run = Run(PROMPTS, OUTPUTS, settings(max_num_seqs=1), "continuous", only=[i])
        tokens.append(run.outputs[i])
    return tokens


def test_requests_alone_generate_different_things():
    assert sum(len(o) for o in alone()) == OUTPUTS.sum()
    assert len({tuple(o[:4]) for o in alone() if len(o) >= 4}) > 10


@pytest.mark.parametrize("policy", NAMED)
def test_greedy_tokens_are_the_same_under_every_policy(policy):
    run = Run(PROMPTS, OUTPUTS, settings(), policy)
    assert run.outputs == alone()
    assert run.steps.counter.slots == run.slots
    assert run.steps.counter.pairs == run.pairs
    assert run.steps.pager.free == 200


@pytest.mark.parametrize(
    ("policy", "layout", "changes"),
    [
        ("static", "packed", {}),
        ("bucketing", "bucket", {"bucket_bounds": (32, 64, 128)}),
        ("bucketing", "packed", {"bucket_bounds": (32, 64, 128)}),
        ("token-aware", "longest", {"max_num_batched_tokens": 400}),
        ("chunked-prefill", None, {"max_num_batched_tokens": 48}),
        ("chunked-prefill", None, {"max_num_batched_tokens": 48, "max_num_seqs": 40}),
        ("chunked-prefill", None, {"long_prefill_token_threshold": 30}),
    ],
)
def test_greedy_tokens_are_the_same_in_every_layout(policy, layout, changes):
    run = Run(PROMPTS, OUTPUTS, settings(**changes), policy, layout)
    assert run.outputs == alone()
    assert (run.steps.counter.slots, run.steps.counter.pairs) == (run.slots, run.pairs)


def test_greedy_tokens_survive_preemption():
    how = settings(usable_blocks=24, max_num_seqs=16, max_num_batched_tokens=64)
    run = Run(PROMPTS, OUTPUTS, how, "chunked-prefill")
    assert run.preemptions > 3
    assert run.outputs == alone()
    assert run.steps.pager.free == 24


def test_prefix_hits_reuse_pages_and_change_nothing():
    """Prompts of 64 to 150 tokens that share their first 0 to 5 blocks, with little memory."""
    random = np.random.default_rng(3)
    prompts, outputs = random.integers(64, 150, 40), random.integers(1, 30, 40)
    counts = -(-prompts // BLOCK)
    rows = [
        [int(b) if b < (i * 7) % 6 else 1000 + 100 * i + int(b) for b in range(n)]
        for i, n in enumerate(counts)
    ]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    hashes = BlockHashes(np.concatenate(rows), offsets, BLOCK)
    plain = Run(prompts, outputs, settings(), "chunked-prefill", hashes=hashes)
    for blocks in (200, 40):
        how = settings(usable_blocks=blocks, enable_prefix_caching=True, max_num_batched_tokens=90)
        run = Run(prompts, outputs, how, "chunked-prefill", hashes=hashes)
        assert run.tokens < plain.tokens - 500, "no hits"
        assert run.outputs == plain.outputs
        assert run.steps.counter.pairs == run.pairs
    assert run.preemptions


def test_decode_graphs_pad_and_change_nothing(monkeypatch):
    """Recorded decode steps, with a repeatable call in the place of a CUDA graph."""
    standins.install_flash(monkeypatch)
    how = settings(block_size=256, usable_blocks=20, max_num_seqs=6)
    runs = [
        Run(PROMPTS[:10], OUTPUTS[:10], how, "continuous", backend=FlashAttention(),
            graphs=graphs, dtype=torch.bfloat16, block=256)
        for graphs in ((), (1, 2, 4))
    ]  # fmt: skip
    plain, graphed = runs
    assert graphed.outputs == plain.outputs
    assert graphed.steps.counter.pairs == plain.steps.counter.pairs == plain.pairs
    assert graphed.steps.counter.slots > plain.slots  # three decodes are computed as four


def test_sdpa_decodes_cannot_be_recorded():
    with pytest.raises(ValueError, match="sdpa cannot be recorded"):
        Run(PROMPTS[:1], OUTPUTS[:1], settings(), "continuous", graphs=(1,))


def test_equal_hashes_are_equal_tokens():
    prompts = np.array([40, 40, 25])
    hashes = BlockHashes(np.array([7, 8, 9, 7, 8, 10, 7, 8]), np.array([0, 3, 6, 8]), 16)
    tokens = Tokens(prompts, np.array([1, 1, 1]), 1000, 0, hashes)
    a, b, c = (tokens.prompt(i) for i in range(3))
    assert (a[:32] == b[:32]).all()
    assert not (a[32:] == b[32:]).all()
    assert (a[:25] == c).all()
    assert len({*a.tolist()}) > 30
    other = Tokens(prompts, np.array([1, 1, 1]), 1000, 1, hashes)
    assert not (other.prompt(0) == a).all()
    without = Tokens(prompts, np.array([1, 1, 1]), 1000)
    assert not (without.prompt(0) == without.prompt(1)).all()
