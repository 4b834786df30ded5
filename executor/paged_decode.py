"""Decode attention over pages as a Triton kernel, for GPUs where no library at hand has one."""

# ruff: noqa: N803 (compile-time constants are upper case, as in all Triton kernels)

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from executor.attention import Rows
from executor.cache import LayerKV

_PROGRAMS = 512
"""Programs that keep a large GPU busy: rows are split along their context up to this many."""
_MOST_SPLITS = 16


def _attend_kernel(
    q: Any, k: Any, v: Any, table: Any, lengths: Any, out: Any, sums: Any, scale: Any,
    q_row: Any, q_head: Any, k_page: Any, k_slot: Any, k_head: Any,
    v_page: Any, v_slot: Any, v_head: Any, table_row: Any, out_row: Any, out_split: Any,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, EXACT: tl.constexpr,
) -> None:  # fmt: skip
    """One KV head of one row over one share of its context, with a running softmax."""
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    # whole blocks a split, so that no block is read twice
    share = tl.cdiv(tl.cdiv(length, BLOCK), SPLITS) * BLOCK
    first = split * share
    last = tl.minimum(first + share, length)

    member = tl.arange(0, GROUP_PAD)
    channel = tl.arange(0, DIM_PAD)
    inside = channel < DIM
    head = kv_head * GROUP + member
    here = (member < GROUP)[:, None] & inside[None, :]
    q_at = row * q_row + head[:, None] * q_head + channel[None, :]
    query = tl.load(q + q_at, mask=here, other=0.0)

    best = tl.full([GROUP_PAD], -1e30, tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    mean = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
    for begin in range(first, last, BLOCK):
        token = begin + tl.arange(0, BLOCK)
        live = token < last
        page = tl.load(table + row * table_row + token // PAGE, mask=live, other=0).to(tl.int64)
        slot = token % PAGE
        there = live[:, None] & inside[None, :]
        k_at = page * k_page + slot * k_slot + kv_head * k_head
        v_at = page * v_page + slot * v_slot + kv_head * v_head
        keys = tl.load(k + k_at[:, None] + channel[None, :], mask=there, other=0.0)
        values = tl.load(v + v_at[:, None] + channel[None, :], mask=there, other=0.0)
        if EXACT:
            scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        else:
            scores = tl.dot(query, tl.trans(keys)) * scale
        scores = tl.where(live[None, :], scores, -1e30)
        new = tl.maximum(best, tl.max(scores, 1))
        shrink = tl.exp2(best - new)
        weights = tl.where(live[None, :], tl.exp2(scores - new[:, None]), 0.0)
        total = total * shrink + tl.sum(weights, 1)
        if EXACT:
            part = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        else:
            part = tl.dot(weights.to(values.dtype), values)
        mean = mean * shrink[:, None] + part
        best = new

    mean = mean / tl.where(total > 0, total, 1.0)[:, None]
    at_out = row * out_row + split * out_split + head[:, None] * DIM + channel[None, :]
    tl.store(out + at_out, mean.to(out.dtype.element_ty), mask=here)
    if SPLITS > 1:
        # log2 of the sum of weights: what a share counts when the shares are put together
        weight = tl.where(total > 0, best + tl.log2(tl.where(total > 0, total, 1.0)), -1e30)
        tl.store(sums + (row * SPLITS + split) * HEADS + head, weight, mask=member < GROUP)


def _join_kernel(
    parts: Any, sums: Any, out: Any,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    SPLITS: tl.constexpr, SPLITS_PAD: tl.constexpr,
) -> None:  # fmt: skip
    """The shares of one head of one row, weighted by their sums."""
    row, head = tl.program_id(0), tl.program_id(1)
    split = tl.arange(0, SPLITS_PAD)
    channel = tl.arange(0, DIM_PAD)
    live, inside = split < SPLITS, channel < DIM
    weight = tl.load(sums + (row * SPLITS + split) * HEADS + head, mask=live, other=-1e30)
    weight = tl.where(live, tl.exp2(weight - tl.max(weight, 0)), 0.0)
    at = ((row * SPLITS + split) * HEADS + head)[:, None] * DIM + channel[None, :]
    part = tl.load(parts + at, mask=live[:, None] & inside[None, :], other=0.0)
    mean = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    at_out = (row * HEADS + head) * DIM + channel
    tl.store(out + at_out, mean.to(out.dtype.element_ty), mask=inside)


_attend: Any = triton.jit(_attend_kernel)
_join: Any = triton.jit(_join_kernel)


def paged_decode(q: Tensor, kv: LayerKV, rows: Rows) -> Tensor:
    """One query a row over its pages, [rows, heads, head_dim] to the same (see `Backend`)."""
    count, heads, dim = q.shape
    _, page_size, kv_heads, _ = kv.k.shape
    group = heads // kv_heads
    splits = min(max(_PROGRAMS // (count * kv_heads), 1), _MOST_SPLITS)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    parts, sums = out, out
    if splits > 1:
        parts = torch.empty((count, splits, heads, dim), dtype=torch.float32, device=q.device)
        sums = torch.empty((count, splits, heads), dtype=torch.float32, device=q.device)
    pad = max(16, triton.next_power_of_2(dim))  # the least that `tl.dot` multiplies
    sizes: dict[str, Any] = {"HEADS": heads, "DIM": dim, "DIM_PAD": pad}
    _attend[(count, kv_heads, splits)](
        q, kv.k, kv.v, rows.table, rows.used_k, parts, sums,
        dim**-0.5 * 1.4426950408889634,  # log2(e): the kernel's exponentials are powers of two
        q.stride(0), q.stride(1),
        *kv.k.stride()[:3], *kv.v.stride()[:3],
        rows.table.stride(0), splits * heads * dim, heads * dim,
        GROUP=group, GROUP_PAD=max(16, triton.next_power_of_2(group)),
        PAGE=page_size, BLOCK=64, SPLITS=splits, EXACT=q.dtype == torch.float32,
        **sizes,
    )  # fmt: skip
    if splits > 1:
        _join[(count, heads)](
            parts, sums, out, SPLITS=splits, SPLITS_PAD=triton.next_power_of_2(splits), **sizes
        )
    return out
