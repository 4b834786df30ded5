"""CPU stand-ins for attention libraries that need a GPU: their signatures, checks and results.

Each computes with the plain definition of attention in float64, so that they are also the
independent truth, and refuses what the real kernels refuse.
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """The last len(q) of len(k) tokens, causal; q [n, heads, d], k and v [m, kv_heads, d]."""
    n, heads, dim = q.shape
    m = k.shape[0]
    group = heads // k.shape[1]
    out = torch.empty(n, heads, dim, dtype=torch.float64)
    for h in range(heads):
        scores = q[:, h].double() @ k[:, h // group].double().T * (scale or dim**-0.5)
        future = torch.arange(m)[None] > torch.arange(n)[:, None] + (m - n)
        out[:, h] = scores.masked_fill(future, -torch.inf).softmax(-1) @ v[:, h // group].double()
    return out.to(q.dtype)


def from_pages(pages: Tensor, table: Tensor, length: int) -> Tensor:
    """The first `length` tokens that a row of a page table holds, one by one."""
    size = pages.shape[1]
    return torch.stack([pages[int(table[t // size]), t % size] for t in range(length)])


def refuse(broken: bool, what: str) -> None:
    if broken:
        raise RuntimeError(what)


def check_int32(x: Tensor, name: str) -> None:
    refuse(x.dtype != torch.int32, f"{name} must have dtype torch.int32")
    refuse(not x.is_contiguous(), f"{name} must be contiguous")


def check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    """What both flash-attn calls ask of queries, keys and values."""
    refuse(q.dtype not in (torch.float16, torch.bfloat16), "only support fp16 and bf16 data type")
    refuse(k.dtype != q.dtype or v.dtype != q.dtype, "query, key and value must have one dtype")
    for x in (q, k, v):
        refuse(x.stride(-1) != 1, "Input tensor must have contiguous last dimension")
        refuse(x.shape[-1] != q.shape[-1], "head sizes differ")
    refuse(q.shape[-1] > 256, "only supports head dimension at most 256")
    refuse(q.shape[-1] % 8 != 0, "head_size must be a multiple of 8")
    refuse(q.shape[-2] % k.shape[-2] != 0, "Number of heads in key/value must divide query's")


def check_table(k: Tensor, v: Tensor, table: Tensor, batch: int, multiple: int) -> None:
    refuse(table.dtype != torch.int32, "block_table must have dtype torch.int32")
    refuse(table.stride(-1) != 1, "block_table must have contiguous last dimension")
    refuse(table.shape[0] != batch, "block_table must have a row a sequence")
    refuse(k.dim() != 4 or k.shape != v.shape, "paged keys are [pages, page_size, kv_heads, d]")
    refuse(k.shape[1] % multiple != 0, f"Paged KV cache block size must be divisible by {multiple}")
    refuse(int(table.max()) >= k.shape[0] or int(table.min()) < 0, "block_table out of range")


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None,
):  # fmt: skip
    """flash-attn 2.8's, causal only."""
    check_heads(q, k, v)
    check_int32(cu_seqlens_q, "cu_seqlens_q")
    check_int32(cu_seqlens_k, "cu_seqlens_k")
    batch = cu_seqlens_q.numel() - 1
    refuse(batch < 1, "batch size must be positive")
    refuse(q.dim() != 3 or q.shape[0] != int(cu_seqlens_q[-1]), "q must be [total_q, heads, d]")
    refuse(cu_seqlens_k.numel() != batch + 1, "cu_seqlens_k must have batch + 1 entries")
    refuse(not causal or dropout_p != 0.0, "this stand-in is causal")
    refuse(not isinstance(max_seqlen_q, int), "max_seqlen_q must be an int")
    lengths_q, lengths_k = cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
    refuse(max(lengths_q) > max_seqlen_q or max(lengths_k) > max_seqlen_k, "max_seqlen too small")
    if block_table is not None:
        check_table(k, v, block_table, batch, 256)
    else:
        refuse(k.shape[0] != int(cu_seqlens_k[-1]), "k must be [total_k, heads_k, d]")
    return _ragged(q, k, v, lengths_q, lengths_k, block_table, softmax_scale)


def _ragged(q, k, v, lengths_q, lengths_k, table, scale):
    out, at_q, at_k = [], 0, 0
    for i, (n, m) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        if table is None:
            keys, values = k[at_k : at_k + m], v[at_k : at_k + m]
        else:
            keys, values = (from_pages(x, table[i], m) for x in (k, v))
        out.append(attention(q[at_q : at_q + n], keys, values, scale))
        at_q, at_k = at_q + n, at_k + m
    return torch.cat(out)


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None,
    cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None,
    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False,
):  # fmt: skip
    """flash-attn 2.8's, without new keys."""
    refuse(q.dim() != 4, "q must be [batch, seqlen, heads, d]")
    check_heads(q, k_cache, v_cache)
    check_int32(cache_seqlens, "cache_seqlens")
    refuse(cache_seqlens.shape != (q.shape[0],), "cache_seqlens must be [batch]")
    refuse(k is not None or cache_batch_idx is not None, "not what this stand-in does")
    check_table(k_cache, v_cache, block_table, q.shape[0], 256)
    rows = [
        attention(
            q[i], *(from_pages(x, block_table[i], n) for x in (k_cache, v_cache)), softmax_scale
        )
        for i, n in enumerate(cache_seqlens.tolist())
    ]
    return torch.stack(rows)


def flash_attn() -> ModuleType:
    """A module to put in the place of flash-attn."""
    module = ModuleType("flash_attn")
    module.flash_attn_varlen_func = flash_attn_varlen_func
    module.flash_attn_with_kvcache = flash_attn_with_kvcache
    return module


# PyTorch's varlen_attn, as three releases have it -----------------------------------------------


def varlen_attn_2_10(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None
):
    """`is_causal`, no pages."""
    refuse(not is_causal, "this stand-in is causal")
    return flash_attn_varlen_func(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, causal=True)


def varlen_attn_2_11(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *,
    return_aux=None, scale=None, window_size=(-1, -1),
):  # fmt: skip
    """`window_size`, no pages."""
    refuse(window_size != (-1, 0), "this stand-in is causal")
    return varlen_attn_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, True)


def varlen_attn_equal_heads(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *,
    return_aux=None, scale=None, window_size=(-1, -1),
):  # fmt: skip
    """A release that insists on as many KV heads as query heads."""
    refuse(query.shape[1] != key.shape[1], "expected as many heads in key as in query")
    return varlen_attn_2_11(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, window_size=window_size
    )


def varlen_attn_2_13(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *,
    return_aux=None, scale=None, window_size=(-1, -1), enable_gqa=False, seqused_k=None,
    block_table=None, num_splits=None,
):  # fmt: skip
    """Pages, where FlashAttention 3 is active."""
    refuse(window_size != (-1, 0), "this stand-in is causal")
    kv_heads = key.shape[2] if block_table is not None else key.shape[1]
    refuse(not enable_gqa and query.shape[1] != kv_heads, "expect the same number of heads")
    if block_table is None:
        return varlen_attn_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, True)
    check_heads(query, key, value)
    check_int32(cu_seq_q, "cu_seq_q")
    check_int32(seqused_k, "seqused_k")
    refuse(cu_seq_k is not None, "with pages, lengths come from seqused_k")
    check_table(key, value, block_table, cu_seq_q.numel() - 1, 1)
    lengths = seqused_k.tolist()
    refuse(max(lengths) > max_k, "max_k too small")
    return _ragged(query, key, value, cu_seq_q.diff().tolist(), lengths, block_table, scale)


def varlen_attn_2_13_without_fa3(*args, block_table=None, **kwargs):
    """Knows the names, refuses the pages: no FlashAttention 3."""
    refuse(block_table is not None, "block_table requires FlashAttention 3")
    return varlen_attn_2_13(*args, **kwargs)


varlen_attn_2_13_without_fa3.__signature__ = __import__("inspect").signature(varlen_attn_2_13)


def install_varlen(monkeypatch, function) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", function)


def install_flash(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", flash_attn())


def install_decode(monkeypatch) -> None:
    """In the place of the Triton kernel, which needs a GPU (or its interpreter, see its test)."""

    def paged_decode(q, kv, rows):
        check_int32(rows.used_k, "used_k")
        refuse(rows.table.stride(-1) != 1, "table must have contiguous last dimension")
        return torch.cat(
            [
                attention(q[i : i + 1], *(from_pages(x, rows.table[i], n) for x in kv))
                for i, n in enumerate(rows.used_k.tolist())
            ]
        )

    module = ModuleType("executor.paged_decode")
    module.paged_decode = paged_decode
    monkeypatch.setitem(sys.modules, "executor.paged_decode", module)
