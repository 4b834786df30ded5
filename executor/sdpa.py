"""Attention through PyTorch's own `scaled_dot_product_attention`: the CPU's, and the reference."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from executor.attention import Ragged, Rectangle, Rows
from executor.cache import LayerKV

_BLOCK = 512
"""Queries a call, where a chunk attends to a context: bounds the mask."""
_SPLIT = 256
"""Tokens of padding that are worth one more group of decode rows."""


class _Group(NamedTuple):
    """Decode rows of like length, that are attended to as one batch."""

    rows: slice
    pages: Tensor
    """Page heads to gather, int32 [rows * kv_heads * pages]."""
    mask: Tensor
    """0 or -inf, [rows * kv_heads, 1, length]."""


class Sdpa:
    """SDPA over pages gathered on the fly: exact, on any device, fastest on the CPU."""

    name = "sdpa"
    page_multiple = 1
    capturable = False
    heads_first = True

    def __init__(self) -> None:
        self._groups: tuple[Rows | None, list[_Group]] = (None, [])
        self._pad: tuple[Rectangle | None, Tensor] = (None, torch.empty(0))
        self._diagonal = torch.empty(0)
        self._gathered = torch.empty(0), torch.empty(0)

    # Packed ------------------------------------------------------------------------------------

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, ragged: Ragged) -> Tensor:
        """Prompts one by one (see `Backend`)."""
        out, first = torch.empty_like(q), 0
        for i, (n, length) in enumerate(zip(ragged.q_lens, ragged.kv_lens, strict=True)):
            mine = slice(first, first + int(n))
            first += int(n)
            if n == length:
                keys, values = (x[mine].transpose(0, 1)[None] for x in (k, v))
                out[mine] = _heads_last(
                    F.scaled_dot_product_attention(
                        _heads_first(q[mine]), keys, values, is_causal=True, enable_gqa=True
                    )
                )
            else:
                pages = _page_heads(ragged.table[i : i + 1], int(length), kv)
                keys, values = (x[None, :, :length] for x in self._gather(kv, pages, kv.k.shape[2]))
                self._after_context(q[mine], keys, values, out[mine])
        return out

    def _after_context(self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """A chunk's queries over a context and themselves; keys [1, kv_heads, length, d]."""
        length = keys.shape[2]
        context = length - q.shape[0]
        for a in range(0, q.shape[0], _BLOCK):
            b = min(a + _BLOCK, q.shape[0])
            seen = context + b
            out[a:b] = _heads_last(
                F.scaled_dot_product_attention(
                    _heads_first(q[a:b]),
                    keys[:, :, :seen],
                    values[:, :, :seen],
                    attn_mask=self._lower_right(b - a, seen, q),
                    enable_gqa=True,
                )
            )

    def _lower_right(self, queries: int, length: int, like: Tensor) -> Tensor:
        """The causal mask of the last `queries` of `length` tokens, as a window on a larger one."""
        whole = self._diagonal
        if whole.dtype != like.dtype or whole.shape[-1] < length + _BLOCK:
            # row i sees all columns but the last _BLOCK, and i + 1 of those
            columns = 2 * length + _BLOCK
            whole = like.new_full((_BLOCK, columns), -torch.inf).triu_(columns - _BLOCK + 1)
            self._diagonal = whole
        first = whole.shape[1] - _BLOCK - (length - queries)
        return whole[:queries, first : first + length]

    def decode(self, q: Tensor, kv: LayerKV, rows: Rows) -> Tensor:
        """Rows of like length together (see `Backend`)."""
        if self._groups[0] is not rows:
            self._groups = (rows, _group(rows, kv))
        parts = []
        for group in self._groups[1]:
            keys, values = self._gather(kv, group.pages, group.mask.shape[0])
            parts.append(_dense(q[group.rows], keys, values, group.mask))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _gather(self, kv: LayerKV, page_heads: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        """Pages side by side, [batch, tokens, head_dim]; a batch entry is one KV head of one row.

        The pages are stored head by head, so this copies runs of page_size * head_dim numbers,
        into memory that is kept: fresh memory costs the CPU as much as the copy.
        """
        pages, page_size, kv_heads, head_dim = kv.k.shape
        size = page_heads.shape[0], page_size * head_dim
        if self._gathered[0].numel() < size[0] * size[1] or self._gathered[0].dtype != kv.k.dtype:
            self._gathered = kv.k.new_empty(size).view(-1), kv.v.new_empty(size).view(-1)
        found = []
        for memory, kept in zip(kv, self._gathered, strict=True):
            flat = memory.transpose(1, 2).view(pages * kv_heads, size[1])
            out = kept[: size[0] * size[1]].view(size)
            torch.index_select(flat, 0, page_heads, out=out)
            found.append(out.view(batch, -1, head_dim))
        return found[0], found[1]

    # Padded ------------------------------------------------------------------------------------

    def padded(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, rectangle: Rectangle) -> Tensor:
        """The whole rectangle, masked keys computed like all others (see `Backend`)."""
        at, heads = rectangle, kv.k.shape[1]
        if self._pad[0] is not rectangle:
            # decodes are one batch of rows x heads, prompts have heads and queries of their own
            repeat = heads if at.queries == 1 else 1
            hidden = torch.arange(at.columns, device=q.device) < at.pad[:, None]
            mask = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device)
            mask.masked_fill_(hidden, _hidden(q.dtype))
            self._pad = (rectangle, mask.repeat_interleave(repeat, 0)[:, None])
        mask = self._pad[1]
        if at.queries == 1:
            keys, values = (x[:, :, : at.columns].flatten(0, 1) for x in kv)
            return _dense(q, keys, values, mask)
        batch = [x.view(at.rows, at.queries, *x.shape[1:]).transpose(1, 2) for x in (q, k, v)]
        out = _causal_padded(batch[0], batch[1], batch[2], mask[:, None])
        return out.transpose(1, 2).reshape(q.shape)


def _group(rows: Rows, kv: LayerKV) -> list[_Group]:
    """The groups of one step's decodes."""
    _, page_size, kv_heads, _ = kv.k.shape
    lengths, groups = rows.kv_lens.tolist(), []
    for first, end in pairwise(_cuts(lengths)):
        pages = _page_heads(rows.table[first:end], max(lengths[first:end]), kv)
        padded = torch.arange(pages.numel() // ((end - first) * kv_heads) * page_size)
        hidden = padded.to(pages.device) >= rows.used_k[first:end, None]
        mask = torch.zeros(hidden.shape, dtype=kv.k.dtype, device=pages.device)
        mask = mask.masked_fill_(hidden, -torch.inf).repeat_interleave(kv_heads, 0)[:, None]
        groups.append(_Group(slice(first, end), pages, mask))
    return groups


def _cuts(lengths: list[int]) -> list[int]:
    """Bounds of consecutive groups, cut where a longer row would pad the others too much."""
    cuts, longest, total = [0], 0, 0
    for i, length in enumerate(lengths):
        longest, total = max(longest, length), total + length
        if longest * (i + 1 - cuts[-1]) - total > _SPLIT:
            cuts.append(i)
            longest = total = length
    return [*cuts, len(lengths)]


def _page_heads(table: Tensor, length: int, kv: LayerKV) -> Tensor:
    """Where the heads of pages are, for the first `length` tokens of each row of a page table."""
    _, page_size, kv_heads, _ = kv.k.shape
    heads = torch.arange(kv_heads, dtype=table.dtype, device=table.device)[:, None]
    return (table[:, None, : -(-length // page_size)] * kv_heads + heads).view(-1)


def _dense(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """One query a head over keys [rows * kv_heads, length, d]; mask [rows * kv_heads, 1, length].

    The query heads that share a KV head are that batch entry's queries: no key is repeated.
    """
    batch, _, head_dim = keys.shape
    group = q.reshape(batch, -1, head_dim)
    scores = torch.baddbmm(
        mask.expand(-1, group.shape[1], -1), group, keys.transpose(1, 2), alpha=head_dim**-0.5
    )
    weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
    return torch.bmm(weights, values).view(q.shape)


def _heads_first(x: Tensor) -> Tensor:
    """[tokens, heads, d] to [1, heads, tokens, d]."""
    return x.transpose(0, 1)[None]


def _heads_last(x: Tensor) -> Tensor:
    """[1, heads, tokens, d] to [tokens, heads, d]."""
    return x[0].transpose(0, 1)


# A causal mask and padding together --------------------------------------------------------------


def _hidden(dtype: torch.dtype) -> float:
    """What hides a key when added to its score: finite, so that a row of them alone is no nan."""
    return -3e4 if dtype == torch.float16 else -1e30


def _causal_padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Causal attention with hidden keys; q [rows, heads, width, d], mask [rows, 1, 1, width].

    A mask of all pairs would cost width² memory and, on the CPU, twice the causal kernel's time.
    Where SDPA takes a mask of keys and causality together, that is used; elsewhere the mask
    becomes one more channel of the keys, which every query reads with weight one.
    """
    if q.device.type == "cpu" and _takes_both(q.dtype):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=True, enable_gqa=True
        )
    return _causal_channel(q, k, v, mask)


def _causal_channel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The same through keys of 8 channels more (kernels want multiples of 8)."""
    head_dim = q.shape[-1]
    q, k, v = (F.pad(x, (0, 8)) for x in (q, k, v))
    q[..., head_dim] = 1
    k[..., head_dim] = mask[:, :, 0]
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=head_dim**-0.5, enable_gqa=True
    )
    return out[..., :head_dim]


@lru_cache
def _takes_both(dtype: torch.dtype) -> bool:
    """Whether this PyTorch's SDPA on the CPU applies a mask and causality together.

    Its documentation says that it refuses, its CPU kernel does both; so try.
    """
    q = torch.randn(2, 2, 64, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    mask = torch.zeros(2, 1, 1, 64, dtype=dtype)
    mask[1, ..., :20] = _hidden(dtype)
    try:
        got = F.scaled_dot_product_attention(q, q, q, attn_mask=mask, is_causal=True)
    except RuntimeError:
        return False
    return torch.allclose(got, _causal_channel(q, q, q, mask), atol=2e-2, rtol=2e-2)
