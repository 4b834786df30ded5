"""What one step needs on the device, made from the plan with NumPy: no loop over tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.attention import (
    Backend,
    Counter,
    Ints,
    PackedAttend,
    PaddedAttend,
    Ragged,
    Rectangle,
    Rows,
)
from executor.cache import KVCache, LayerKV
from executor.device import event
from executor.model import Attend
from executor.pages import Pager
from executor.tokens import Tokens
from serving.request import Request
from serving.step import Padded, Step


class Batch(NamedTuple):
    """One step, ready to run."""

    cells: Tensor
    """Where in `Tokens` each input is, int32 [tokens]."""
    positions: Tensor
    """Each token's place in its own sequence, int32 [tokens]."""
    rows: Tensor
    """Which tokens get logits, int32 [rows]."""
    targets: Tensor
    """Where in `Tokens` what they sample goes, int32 [rows]."""
    attend: Attend


class Staging:
    """Moves small arrays to the device in one copy, from pinned memory where there is a GPU.

    Three buffers take turns: a buffer is written again only after the copy out of it has ended.
    """

    def __init__(self, device: torch.device, turns: int = 3) -> None:
        self._device = device
        self._pinned = [torch.empty(0, dtype=torch.int32) for _ in range(turns)]
        self._copied: list[torch.cuda.Event | None] = [None] * turns
        self._turn = 0

    def put(self, arrays: Sequence[NDArray[np.integer]]) -> list[Tensor]:
        """The arrays as int32 tensors on the device, each of its own shape."""
        if self._device.type == "cpu":
            return [torch.from_numpy(a.astype(np.int32)) for a in arrays]
        turn = self._turn = (self._turn + 1) % len(self._pinned)
        sizes = [a.size for a in arrays]
        copied = self._copied[turn]
        if copied is None:
            copied = self._copied[turn] = event()
        else:
            copied.synchronize()
        if self._pinned[turn].numel() < sum(sizes):
            self._pinned[turn] = torch.empty(2 * sum(sizes), dtype=torch.int32, pin_memory=True)
        host = self._pinned[turn][: sum(sizes)]
        np.concatenate([a.ravel() for a in arrays], out=host.numpy(), casting="same_kind")
        parts = torch.split(host.to(self._device, non_blocking=True), sizes)
        copied.record()
        return [p.view(a.shape) for p, a in zip(parts, arrays, strict=True)]


class Inputs:
    """Turns planned steps into batches: gives tokens their pages, and says where all things go."""

    def __init__(
        self,
        tokens: Tokens,
        cache: KVCache,
        pager: Pager,
        backend: Backend,
        counter: Counter,
    ) -> None:
        self.tokens, self.cache, self.pager = tokens, cache, pager
        self.backend, self.counter = backend, counter
        self.staging = Staging(cache.memory.device)
        self._rectangle: _Rectangle | None = None

    def batch(self, step: Step) -> Batch | None:
        """The inputs of a step; None where it has no rows.

        To be called between the plan of the step and the next plan, once.

        Raises:
            RuntimeError: the plan contradicts itself.
        """
        if isinstance(step.layout, Padded):
            return self._padded(step, step.layout)
        return self._packed(step)

    # Packed ------------------------------------------------------------------------------------

    def _packed(self, step: Step) -> Batch | None:
        """Prompts, or chunks of them, then decodes."""
        works, members = step.prefill, step.decodes.members()
        if len(members) != step.features.decode_tokens:
            raise RuntimeError(
                f"step {step.id} counts {step.features.decode_tokens} decodes, "
                f"and names {len(members)}"
            )
        if not works and not members:
            return None
        for work in works:
            self.pager.place(work)
        p, d = len(works), len(members)
        q_lens = np.ones(p + d, np.int64)
        q_lens[:p] = [w.tokens for w in works]
        starts = np.array([w.start for w in works] + [c for _, c in members], np.int64)
        requests = np.array([w.request.index for w in works] + [r.index for r, _ in members])
        samples = np.ones(p + d, bool)
        samples[:p] = [w.samples for w in works]
        # rising contexts: decodes of like length lie together (see `Rows`)
        order = np.concatenate((np.arange(p), p + np.argsort(starts[p:], kind="stable")))
        starts, requests = starts[order], requests[order]
        tables = self.pager.rows(requests)
        self.pager.grow(tables[p:], starts[p:])

        ends = np.cumsum(q_lens)
        owner = np.repeat(np.arange(p + d), q_lens)
        positions = np.arange(ends[-1]) - (ends - q_lens - starts)[owner]
        offsets = self.tokens.offsets[requests]
        page_size = self.cache.page_size
        pages = self.pager.tables[tables[owner], positions // page_size]
        lasts = (ends - 1)[samples]
        kv_lens = starts + q_lens
        arrays = [
            offsets[owner] + positions,
            positions,
            lasts,
            offsets[samples] + kv_lens[samples],
            pages,
            positions % page_size,
            kv_lens,
        ]
        if p:
            arrays += [_bounds(q_lens[:p]), _bounds(kv_lens[:p])]
            arrays.append(self._table(tables[:p], kv_lens[:p]))
        if d:
            arrays.append(self._table(tables[p:], kv_lens[p:]))
        cells, position, row, target, page, slot, used, *rest = self.staging.put(arrays)
        ragged = rows = None
        if p:
            cu_q, cu_k, table = rest[:3]
            ragged = Ragged(q_lens[:p], kv_lens[:p], cu_q, cu_k, used[:p], table)
        if d:
            rows = Rows(kv_lens[p:], used[p:], rest[-1])
        attend = PackedAttend(
            self.backend, self.cache.layers, page, slot, ragged, rows, self.counter
        )
        return Batch(cells, position, row, target, attend)

    def _table(self, tables: Ints, kv_lens: Ints) -> NDArray[np.int32]:
        """The page tables of some requests, as wide as the longest of them needs."""
        width = -(-int(kv_lens.max()) // self.cache.page_size)
        table: NDArray[np.int32] = self.pager.tables[tables, :width]
        return table

    # Padded ------------------------------------------------------------------------------------

    def _padded(self, step: Step, layout: Padded) -> Batch:
        """A rectangle of prompts, or one more column of it, finished rows included."""
        if self._rectangle is None or self._rectangle.rows is not layout.rows:
            self._rectangle = _Rectangle(layout, self.tokens, self.cache, self.staging)
        at = self._rectangle
        if step.prefill:
            if len(step.prefill) != len(layout.rows):
                raise RuntimeError(
                    f"step {step.id} computes {len(step.prefill)} prompts of a padded batch of "
                    f"{len(layout.rows)} rows; such a batch starts in one step"
                )
            start, queries, arrays = 0, layout.width, at.prompts()
        else:
            (request, context), *_ = step.decodes.members()
            decoded = context - request.prompt
            start, queries, arrays = layout.width + decoded, 1, at.column(decoded)
        cells, positions, rows, targets = self.staging.put(arrays)
        rectangle = Rectangle(len(layout.rows), start, queries, at.pad)
        attend = PaddedAttend(self.backend, at.layers, rectangle, self.counter)
        return Batch(cells, positions, rows, targets, attend)


class _Rectangle:
    """A padded batch as long as it runs."""

    def __init__(self, layout: Padded, tokens: Tokens, cache: KVCache, staging: Staging) -> None:
        self.rows: tuple[Request, ...] = layout.rows
        self.width, self._nowhere = layout.width, tokens.nowhere
        requests = np.array([r.index for r in layout.rows], np.int64)
        self._prompt, self._output = tokens.prompts[requests], tokens.outputs[requests]
        self._offset = tokens.offsets[requests]
        (self.pad,) = staging.put([self.width - self._prompt])
        capacity = self.width + int(self._output.max())
        self.layers: list[LayerKV] = cache.rectangle(len(requests), capacity)

    def prompts(self) -> list[Ints]:
        """Cells, positions, rows and targets of the whole rectangle; padding reads nowhere."""
        positions = np.arange(self.width) - (self.width - self._prompt)[:, None]
        cells = np.where(positions < 0, self._nowhere, self._offset[:, None] + positions)
        lasts = np.arange(1, len(self._prompt) + 1) * self.width - 1
        targets = self._offset + self._prompt
        return [cells.ravel(), np.maximum(positions, 0).ravel(), lasts, targets]

    def column(self, decoded: int) -> list[Ints]:
        """The same of the column `decoded` after the prompts; ended rows repeat their last."""
        known = self._prompt + np.minimum(decoded, np.maximum(self._output - 1, 0))
        targets = self._offset + self._prompt + decoded + 1
        targets[decoded + 1 >= self._output] = self._nowhere
        return [
            self._offset + known,
            self._prompt + decoded,
            np.arange(len(known)),
            targets,
        ]


def _bounds(lengths: Ints) -> Ints:
    """Running sums from 0, [len + 1]."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
