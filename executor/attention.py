"""Attention as a step is laid out: what it computes, and what it asks of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.cache import LayerKV

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Prompts, or chunks of them, back to back."""

    q_lens: Ints
    """Tokens of each that this step computes, [prompts]."""
    kv_lens: Ints
    """Tokens of each that are attended to, those of this step included, [prompts]."""
    cu_q: Tensor
    """Bounds of the prompts in the flat batch, int32 [prompts + 1]."""
    cu_k: Tensor
    """Running sum of `kv_lens`, int32 [prompts + 1]."""
    used_k: Tensor
    """`kv_lens` on the device, int32 [prompts]."""
    table: Tensor
    """Pages of each, int32 [prompts, pages]."""

    @cached_property
    def fresh(self) -> bool:
        """Whether no prompt has a context, so that the step's own keys are all there are."""
        return bool(np.array_equal(self.q_lens, self.kv_lens))

    @cached_property
    def max_q(self) -> int:
        """Most tokens that one prompt computes."""
        return int(self.q_lens.max())

    @cached_property
    def max_k(self) -> int:
        """Most tokens that one prompt attends to."""
        return int(self.kv_lens.max())

    @cached_property
    def pairs(self) -> int:
        """Query-key pairs under the causal mask."""
        q, kv = self.q_lens, self.kv_lens
        return int((q * (kv - q) + q * (q + 1) // 2).sum())


@dataclass(frozen=True, eq=False)
class Rows:
    """Decodes: one token each, after contexts of any length."""

    kv_lens: Ints
    """Tokens attended to, the new one included, [rows]. Rising lengths are the fastest."""
    used_k: Tensor
    """The same on the device, int32 [rows]."""
    table: Tensor
    """Pages of each, int32 [rows, pages]."""

    @cached_property
    def max_k(self) -> int:
        """Most tokens that one row attends to."""
        return int(self.kv_lens.max())

    @cached_property
    def pairs(self) -> int:
        """Query-key pairs."""
        return int(self.kv_lens.sum())


@dataclass(frozen=True, eq=False)
class Rectangle:
    """A padded batch: its prompts (`start` 0), or one more column of it."""

    rows: int
    start: int
    """Column of the first query: 0, or width + decode steps so far."""
    queries: int
    """Columns that this step computes: the width, or 1."""
    pad: Tensor
    """Columns on the left of each row that hold nothing, int32 [rows]."""

    @property
    def columns(self) -> int:
        """Columns that exist after this step."""
        return self.start + self.queries

    @property
    def pairs(self) -> int:
        """Query-key pairs under the causal mask, padding included."""
        q = self.queries
        return self.rows * (q * self.start + q * (q + 1) // 2)


class Backend(Protocol):
    """The three kinds of attention that steps are made of. All are causal."""

    name: str
    page_multiple: int
    """Page sizes are multiples of this."""
    capturable: bool
    """Whether a CUDA graph can hold its decodes: nothing in them depends on the host's lengths."""
    heads_first: bool
    """How it likes the pages stored (see `KVCache`)."""

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, ragged: Ragged) -> Tensor:
        """Prompts over their pages, where this step's `k` and `v` already are.

        Shapes: q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim], the result
        as q.
        """

    def decode(self, q: Tensor, kv: LayerKV, rows: Rows) -> Tensor:
        """One query a row over its pages: [rows, heads, head_dim] to the same."""

    def padded(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, rectangle: Rectangle) -> Tensor:
        """A padded batch, left padding masked: [rows * queries, heads, head_dim] to the same.

        `kv` is the rectangle in memory, where this step's `k` and `v` already are.
        """


class Counter:
    """Token slots and query-key pairs that the layers computed, counted where they do it."""

    def __init__(self) -> None:
        self._slots = self._pairs = self._layers = 0

    def count(self, layer: int, slots: int, pairs: int) -> None:
        """`layer` has computed this much."""
        self._slots += slots
        self._pairs += pairs
        self._layers = max(self._layers, layer + 1)

    @property
    def slots(self) -> float:
        """Token slots, mean over the layers."""
        return self._slots / max(self._layers, 1)

    @property
    def pairs(self) -> float:
        """Query-key pairs, mean over the layers."""
        return self._pairs / max(self._layers, 1)


class PackedAttend:
    """Attention of a packed step: prompts first, then decodes, in one flat batch.

    Args:
        layers: every layer's pages.
        page, slot: where each token's keys and values go: its page and the place in it,
            int32 [tokens].
        ragged, rows: the prompts and the decodes; None where there are none.
    """

    def __init__(
        self,
        backend: Backend,
        layers: Sequence[LayerKV],
        page: Tensor,
        slot: Tensor,
        ragged: Ragged | None,
        rows: Rows | None,
        counter: Counter,
    ) -> None:
        self.backend, self.layers, self.counter = backend, layers, counter
        self.where = (page, slot)
        self.ragged, self.rows = ragged, rows
        self.split = int(ragged.q_lens.sum()) if ragged else 0
        self.pairs = (ragged.pairs if ragged else 0) + (rows.pairs if rows else 0)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend in `layer` (see `Attend`)."""
        kv, n = self.layers[layer], self.split
        # all keys are written before any is read: a prompt may hit a block of this very step
        kv.k.index_put_(self.where, k)
        kv.v.index_put_(self.where, v)
        parts = []
        if self.ragged is not None:
            parts.append(self.backend.varlen(q[:n], k[:n], v[:n], kv, self.ragged))
        if self.rows is not None:
            parts.append(self.backend.decode(q[n:], kv, self.rows))
        self.counter.count(layer, q.shape[0], self.pairs)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class PaddedAttend:
    """Attention of a padded step: a whole rectangle of prompts, or one more column of it."""

    def __init__(
        self, backend: Backend, layers: Sequence[LayerKV], rectangle: Rectangle, counter: Counter
    ) -> None:
        self.backend, self.layers, self.rectangle = backend, layers, rectangle
        self.counter = counter

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend in `layer` (see `Attend`)."""
        kv, at = self.layers[layer], self.rectangle
        for memory, new in zip(kv, (k, v), strict=True):
            block = new.view(at.rows, at.queries, *new.shape[1:]).transpose(1, 2)
            memory[:, :, at.start : at.columns].copy_(block)
        self.counter.count(layer, q.shape[0], at.pairs)
        return self.backend.padded(q, k, v, kv, at)
