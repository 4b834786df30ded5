"""Every attention backend against attention as it is defined."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
import torch

from executor.attention import Counter, PaddedAttend, Rectangle
from executor.backends import NAMES, AttentionError, Case, choose
from executor.cache import KVCache, LayerKV
from executor.flash import FlashAttention
from executor.sdpa import Sdpa, _causal_channel, _cuts, _hidden
from executor.varlen import VarlenAttention
from sim.models import MODELS
from tests.executor import standins

SHAPE = replace(MODELS["tiny"], heads=4, kv_heads=2, head_dim=16, layers=1)
Q, KV, DECODES = [3, 40, 33, 1], [3, 90, 50, 30], [1, 17, 300, 301, 70]


def case(page_size: int = 16, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Case:
    return Case(SHAPE, Q, KV, DECODES, page_size, dtype, device)


def truth(case: Case) -> dict[str, torch.Tensor]:
    """All three kinds, sequence by sequence, from the definition."""
    pages = LayerKV(*case.memory)
    fresh, chunks, at = [], [], 0
    for i, (n, m) in enumerate(zip(Q, KV, strict=True)):
        mine = slice(at, at + n)
        at += n
        fresh.append(standins.attention(case.q[mine], case.k[mine], case.v[mine]))
        keys, values = (standins.from_pages(x, case.table[i], m) for x in pages)
        chunks.append(standins.attention(case.q[mine], keys, values))
    decodes = [
        standins.attention(
            case.q_decode[i : i + 1], *(standins.from_pages(x, case.table[i], n) for x in pages)
        )
        for i, n in enumerate(DECODES)
    ]
    return {"fresh": torch.cat(fresh), "chunks": torch.cat(chunks), "decodes": torch.cat(decodes)}


def check(backend, page_size: int, dtype: torch.dtype, tolerance: float, device="cpu") -> None:
    problem = case(page_size, dtype, device)
    for kind, right in truth(case(page_size, dtype)).items():
        got = getattr(problem, kind)(backend).cpu()
        assert got.shape == right.shape, kind
        assert float((got.float() - right.float()).abs().max()) <= tolerance, kind


@pytest.mark.parametrize("page_size", [16, 24, 256])
def test_sdpa_is_attention(page_size):
    check(Sdpa(), page_size, torch.float32, 2e-6)


def test_sdpa_blocks_of_a_long_chunk(monkeypatch):
    monkeypatch.setattr("executor.sdpa._BLOCK", 8)  # a chunk of 40 becomes five calls
    check(Sdpa(), 16, torch.float32, 2e-6)


def test_flash_attn_gets_what_it_asks_for(monkeypatch):
    standins.install_flash(monkeypatch)
    check(FlashAttention(), 256, torch.bfloat16, 2e-2)


@pytest.mark.parametrize(
    ("release", "paged", "spread"),
    [
        (standins.varlen_attn_2_10, False, False),
        (standins.varlen_attn_2_11, False, False),
        (standins.varlen_attn_equal_heads, False, True),
        (standins.varlen_attn_2_13, True, False),
        (standins.varlen_attn_2_13, False, False),
        (standins.varlen_attn_2_13_without_fa3, False, False),
    ],
)
def test_varlen_attn_gets_what_its_release_asks_for(monkeypatch, release, paged, spread):
    standins.install_varlen(monkeypatch, release)
    standins.install_decode(monkeypatch)
    check(VarlenAttention(paged, spread), 16, torch.bfloat16, 2e-2)


def test_the_best_that_works_is_chosen(monkeypatch):
    """The probe, as on a GPU: flash-attn, then varlen_attn with pages, without, then SDPA."""

    def best(page_size=None):
        monkeypatch.setattr("executor.backends._candidates", lambda device: NAMES)
        return choose(SHAPE, torch.bfloat16, "cpu", None, page_size)

    assert best().name == "sdpa"  # neither library runs on a CPU
    standins.install_decode(monkeypatch)
    standins.install_varlen(monkeypatch, standins.varlen_attn_equal_heads)
    assert (best().name, best().spread) == ("varlen", True)
    standins.install_varlen(monkeypatch, standins.varlen_attn_2_13_without_fa3)
    assert (best().name, best().paged) == ("varlen", False)
    standins.install_varlen(monkeypatch, standins.varlen_attn_2_13)
    assert (best().name, best().paged) == ("varlen", True)
    standins.install_flash(monkeypatch)
    assert best().name == "flash-attn"
    assert best(page_size=16).name == "varlen"  # flash-attn takes multiples of 256


def test_a_backend_that_computes_something_else_is_not_chosen(monkeypatch):
    def wrong(*args, **kwargs):
        return standins.flash_attn_varlen_func(*args, **kwargs) + 1

    module = standins.flash_attn()
    module.flash_attn_varlen_func = wrong
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    with pytest.raises(AttentionError, match=r"flash-attn: its result for .* is off by"):
        choose(SHAPE, torch.bfloat16, "cpu", "flash-attn")


def test_what_cannot_run_says_why(monkeypatch):
    with pytest.raises(AttentionError, match="flash-attn: No module named 'flash_attn'"):
        choose(SHAPE, torch.float32, "cpu", "flash-attn")
    with pytest.raises(AttentionError, match=r"not one of flash-attn, varlen, sdpa"):
        choose(SHAPE, torch.float32, "cpu", "xformers")
    standins.install_flash(monkeypatch)
    with pytest.raises(AttentionError, match=r"multiple of 256 tokens, --block-size asks for 16"):
        choose(SHAPE, torch.bfloat16, "cpu", "flash-attn", 16)
    with pytest.raises(AttentionError, match="only support fp16 and bf16"):
        choose(SHAPE, torch.float32, "cpu", "flash-attn")
    assert choose(SHAPE, torch.float32, "cpu").name == "sdpa"


# Padded ------------------------------------------------------------------------------------------


def padded(start: int, queries: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A rectangle through the backend, and its useful rows from the definition."""
    random = torch.Generator().manual_seed(1)
    pads = [0, 5, 11]
    rows, columns = len(pads), start + queries
    cache = KVCache(SHAPE, 8, 16, heads_first=True)
    layers = cache.rectangle(rows, columns + 3)
    q = torch.randn(rows * queries, SHAPE.heads, SHAPE.head_dim, generator=random)
    k, v = torch.randn(2, rows * queries, SHAPE.kv_heads, SHAPE.head_dim, generator=random)
    for memory in layers[0]:
        memory.copy_(torch.randn(memory.shape, generator=random))  # the past, and rubbish beyond
    at = Rectangle(rows, start, queries, torch.tensor(pads, dtype=torch.int32))
    got = PaddedAttend(Sdpa(), layers, at, Counter())(0, q, k, v).view(rows, queries, *q.shape[1:])
    right = torch.zeros_like(got)
    for row, pad in enumerate(pads):
        first = max(pad - start, 0)
        keys, values = (x[row, :, pad:columns].transpose(0, 1) for x in layers[0])
        right[row, first:] = standins.attention(q.view(got.shape)[row, first:], keys, values)
        got[row, :first] = 0  # what padding computes is nobody's business
    return got, right


@pytest.mark.parametrize(("start", "queries"), [(0, 20), (20, 1), (23, 1)])
@pytest.mark.parametrize("both", [True, False])
def test_padding_is_masked(monkeypatch, start, queries, both):
    monkeypatch.setattr("executor.sdpa._takes_both", lambda dtype: both)
    got, right = padded(start, queries)
    assert float((got - right).abs().max()) <= 2e-6


def test_the_channel_that_hides_keys_hides_them_in_every_dtype():
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)):
        q, k, v = torch.randn(3, 2, 2, 30, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
        mask = torch.zeros(2, 1, 1, 30, dtype=dtype)
        mask[1, ..., :12] = _hidden(dtype)
        got = _causal_channel(q, k, v, mask)[1, :, 12:].transpose(0, 1)
        right = standins.attention(*(x[1, :, 12:].transpose(0, 1) for x in (q, k, v)))
        assert float((got.float() - right.float()).abs().max()) <= tolerance


def test_rows_of_like_length_are_grouped():
    assert _cuts([5]) == [0, 1]
    assert _cuts([5, 6, 7, 80]) == [0, 4]  # 222 tokens of padding cost less than a call
    assert _cuts([5, 6, 7, 200]) == [0, 3, 4]  # 582 do not
    lengths = sorted(np.random.default_rng(0).integers(1, 4000, 64).tolist())
    cuts = _cuts(lengths)
    assert (cuts[0], cuts[-1]) == (0, 64)
    for a, b in pairwise(cuts):
        assert b > a
        assert max(lengths[a:b]) * (b - a) - sum(lengths[a:b]) <= 256


# The Triton kernel -------------------------------------------------------------------------------

KERNEL = """
import torch
from dataclasses import replace
from executor.backends import Case
from executor.cache import LayerKV
from executor import paged_decode as module
from executor.sdpa import Sdpa
from sim.models import MODELS
for dim, kv_heads, page_size, programs, dtype in (
    (16, 2, 16, 512, torch.float32),  # split over the context
    (24, 1, 32, 1, torch.float32),  # no power of two, not split
    (8, 2, 16, 512, torch.float32),  # smaller than the hardware multiplies
    (16, 2, 16, 512, torch.float16),
):
    module._PROGRAMS, module._MOST_SPLITS = programs, 3
    shape = replace(MODELS["tiny"], heads=4, kv_heads=kv_heads, head_dim=dim)
    case = Case(shape, [1], [1], [1, 17, 150], page_size, dtype, "cpu")
    right = case.decodes(Sdpa())
    got = module.paged_decode(case.q_decode, LayerKV(*case.memory), case._rows)
    worst = float((got.float() - right.float()).abs().max())
    assert worst <= (2e-6 if dtype == torch.float32 else 2e-3), (dim, worst)
print("kernel agrees")
"""


@pytest.mark.skipif(
    find_spec("triton") is None,
    reason="THE TRITON KERNEL IS NOT TESTED: triton (needed on GPUs only) is not installed",
)
def test_triton_kernel_in_its_interpreter():
    """In a process of its own: the interpreter is chosen when Triton is imported."""
    done = subprocess.run(
        [sys.executable, "-c", KERNEL],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "kernel agrees" in done.stdout
