"""The model against transformers on the same random weights."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy as copy_of
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executor.attention import Counter, PackedAttend, Ragged, Rows
from executor.cache import KVCache
from executor.model import DTYPES, Transformer, fused, rotary_frequencies
from executor.sdpa import Sdpa
from executor.weights import load, randomise
from sim.models import MODELS, Model, ModelError, load_model
from tests.executor.checkpoints import CONFIGS, TOKENS, answer, checkpoint, folder

FAMILIES = tuple(CONFIGS)
BOUND = 1e-4
PAGE = 16


class Sequence:
    """One sequence on pages in random order, computed piece by piece."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.cache = KVCache(model.shape, 16, PAGE, heads_first=True)
        self.table = torch.randperm(16, generator=torch.Generator().manual_seed(0)).int()[None]

    @torch.inference_mode()
    def logits(self, ids: torch.Tensor, first: int, last: int, decode: bool = False):
        """Tokens [first, last), whose predecessors are computed already."""
        positions = torch.arange(first, last, dtype=torch.int32)
        ints = lambda *x: torch.tensor(x, dtype=torch.int32)  # noqa: E731
        ragged = rows = None
        if decode:
            rows = Rows(np.array([last]), ints(last), self.table)
        else:
            ragged = Ragged(
                np.array([last - first]), np.array([last]),
                ints(0, last - first), ints(0, last), ints(last), self.table,
            )  # fmt: skip
        attend = PackedAttend(
            Sdpa(), self.cache.layers, self.table[0, positions // PAGE], positions % PAGE,
            ragged, rows, Counter(),
        )  # fmt: skip
        return self.model(ids[first:last], positions, attend, torch.arange(last - first))


def ours(family: str, change: Model | None = None) -> Transformer:
    shape = load_model(folder(family)) if change is None else change
    return load(Transformer(shape), folder(family))


def error(model: Transformer, family: str, cuts: list[int]) -> float:
    """Largest difference of logits; a piece of one token is computed as a decode."""
    ids, right = answer(family)
    sequence = Sequence(model)
    pieces = [sequence.logits(ids, a, b, decode=b - a == 1) for a, b in pairwise(cuts)]
    return float((torch.cat(pieces) - right).abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_in_one_piece_in_chunks_and_decoded(family):
    model = ours(family)
    assert error(model, family, [0, TOKENS]) <= BOUND
    assert error(model, family, [0, 7, 64, 65, 150, TOKENS]) <= BOUND
    assert error(model, family, [0, TOKENS - 20, *range(TOKENS - 19, TOKENS + 1)]) <= BOUND


@pytest.mark.parametrize(
    ("family", "without"),
    [
        ("llama", {"rope_scaling": None}),
        ("qwen2", {"qkv_bias": False}),
        ("qwen3", {"qk_norm": False}),
        ("mistral", {"rope_theta": 500_000.0}),
    ],
)
def test_the_bound_catches_a_part_left_out(family, without):
    broken = ours(family, replace(load_model(folder(family)), **without))
    assert error(broken, family, [0, TOKENS]) > 10 * BOUND


def test_the_weights_came_in_the_ways_they_come():
    assert (folder("llama") / "model.safetensors").is_file()
    assert len(list(folder("qwen3").glob("model-*.safetensors"))) > 2
    assert load_model(folder("qwen2")).tied_embeddings


@pytest.fixture
def copy(tmp_path):
    target = tmp_path / "llama"
    shutil.copytree(folder("llama"), target)
    return target


def test_a_pickle_is_never_read(copy):
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a pickle, which is never read"):
        load(Transformer(load_model(copy)), copy)


def test_missing_misshapen_and_broken_weights_are_named(copy):
    file = copy / "model.safetensors"
    shape = load_model(copy)
    weights = load_file(file)
    norm = weights.pop("model.norm.weight")
    save_file(weights, file)
    with pytest.raises(ModelError, match=r"1 weights .* the first of them model\.norm\.weight"):
        load(Transformer(shape), copy)
    save_file({**weights, "model.norm.weight": norm[:10].clone()}, file)
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \(10,\).*\(64,\)"):
        load(Transformer(shape), copy)
    file.write_bytes(b"rubbish")
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        load(Transformer(shape), copy)
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weights": []}))
    with pytest.raises(ModelError, match="not an index of safetensors files"):
        load(Transformer(shape), copy)


def test_unknown_rope_scaling_is_refused():
    shape = replace(MODELS["tiny"], rope_scaling={"rope_type": "yarn", "factor": 4.0})
    with pytest.raises(ModelError, match="'yarn' is not understood"):
        rotary_frequencies(shape)
    linear = replace(MODELS["tiny"], rope_scaling={"rope_type": "linear", "factor": 4.0})
    assert torch.equal(rotary_frequencies(linear) * 4, rotary_frequencies(MODELS["tiny"]))


@pytest.mark.parametrize("name", ["tiny", "small"])
def test_built_in_models_have_the_parameters_they_say(name):
    model = Transformer(MODELS[name], device="meta")
    assert sum(p.numel() for p in model.parameters()) == MODELS[name].parameters()


def test_random_weights_follow_the_seed():
    shape = replace(MODELS["tiny"], layers=1, vocab=100)
    one, same, other = (randomise(Transformer(shape), seed) for seed in (1, 1, 2))
    for a, b, c in zip(*(m.state_dict().values() for m in (one, same, other)), strict=True):
        assert torch.equal(a, b)
        assert a.dim() == 1 or not torch.equal(a, c)


def test_bf16_is_as_near_as_transformers_bf16():
    ids, right = answer("llama")
    sequence = Sequence(ours("llama").to(DTYPES["bf16"]))
    sequence.cache = KVCache(sequence.model.shape, 16, PAGE, DTYPES["bf16"], heads_first=True)
    theirs = copy_of(checkpoint("llama")[1]).to(DTYPES["bf16"])
    with torch.inference_mode():
        off = (theirs(ids[None].long()).logits[0].float() - right).norm()
    assert (sequence.logits(ids, 0, TOKENS).float() - right).norm() <= 1.5 * off


def test_fused_functions_are_the_plain_ones():
    """`torch.compile`'s versions, with the compiler left out: what is traced is what is meant."""
    plain = ours("qwen3")
    compiled = load(Transformer(plain.shape, ops=fused("eager")), folder("qwen3"))
    ids, _ = answer("qwen3")
    for last in (50, 1, 90):
        got, right = (Sequence(m).logits(ids, 0, last) for m in (compiled, plain))
        assert float((got - right).abs().max()) <= 1e-5
