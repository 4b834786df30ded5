"""CUDA graphs: decode-only steps recorded once a batch size, and replayed without the host."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from executor.attention import Backend, Counter, PackedAttend, Rows
from executor.cache import KVCache
from executor.device import stream
from executor.inputs import Batch
from sim.graphs import CAPTURE_SIZES

Record = Callable[[Callable[[], None]], Callable[[], object]]
"""Runs a function in a way that can be repeated, and returns how to repeat it."""


class DecodeGraph:
    """A batch of one size whose tensors never move; smaller ones are padded up to it.

    A row that is padding reads the scratch page, attends to one token and samples to nowhere.
    """

    def __init__(
        self, size: int, cache: KVCache, backend: Backend, longest: int, nowhere: int
    ) -> None:
        device = cache.memory.device
        self.size, self._scratch, self._nowhere = size, cache.scratch, nowhere
        columns = torch.zeros((6, size), dtype=torch.int32, device=device)
        cells, positions, page, slot, self._used, targets = self._columns = columns.unbind()
        width = -(-longest // cache.page_size)
        self._table = torch.zeros((size, width), dtype=torch.int32, device=device)
        # the host's lengths are an upper bound here: a recorded kernel reads the device's
        rows = Rows(np.full(size, longest, np.int64), self._used, self._table)
        attend = PackedAttend(backend, cache.layers, page, slot, None, rows, Counter())
        every = torch.arange(size, dtype=torch.int32, device=device)
        self.batch = Batch(cells, positions, every, targets, attend)
        self.fill(0)

    def fill(self, first: int) -> None:
        """Make the rows from `first` on padding."""
        values = (self._nowhere, 0, self._scratch, 0, 1, self._nowhere)
        for column, value in zip(self._columns, values, strict=True):
            column[first:] = value
        self._table[first:, 0] = self._scratch

    def load(self, batch: Batch, attend: PackedAttend, rows: Rows) -> None:
        """Take over a batch of at most this size."""
        n = batch.cells.shape[0]
        page, slot = attend.where
        values = (batch.cells, batch.positions, page, slot, rows.used_k, batch.targets)
        for column, value in zip(self._columns, values, strict=True):
            column[:n] = value
        self._table[:n, : rows.table.shape[1]] = rows.table
        if n < self.size:
            self.fill(n)


class Graphs:
    """Recorded decode steps of the usual sizes.

    Args:
        sizes: batch sizes to record.
        longest: most tokens that a row may attend to.
        nowhere: the cell that padding reads and samples to.
        counter: told of what each replay computes, padding rows' slots included.
        forward: computes a batch.
        record: how to record; a CUDA graph, unless a test replaces it.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        cache: KVCache,
        backend: Backend,
        longest: int,
        nowhere: int,
        counter: Counter,
        forward: Callable[[Batch], None],
        record: Record | None = None,
    ) -> None:
        if not backend.capturable:
            raise ValueError(f"decodes through {backend.name} cannot be recorded as a CUDA graph")
        self._graphs: list[tuple[DecodeGraph, Callable[[], object]]] = []
        self.sizes, self._layers, self._counter = sorted(sizes), len(cache.layers), counter
        record = record or cuda_graph()
        # the largest first: the smaller ones then find memory of theirs to reuse
        for size in reversed(self.sizes):
            graph = DecodeGraph(size, cache, backend, longest, nowhere)
            self._graphs.insert(0, (graph, record(partial(forward, graph.batch))))

    def replay(self, batch: Batch) -> bool:
        """Run a batch if it is decodes only and not too many; False where it is not."""
        attend = batch.attend
        if not isinstance(attend, PackedAttend) or attend.ragged is not None or attend.rows is None:
            return False
        at = bisect_left(self.sizes, batch.cells.shape[0])
        if at == len(self.sizes):
            return False
        graph, repeat = self._graphs[at]
        graph.load(batch, attend, attend.rows)
        repeat()
        for layer in range(self._layers):
            self._counter.count(layer, graph.size, attend.pairs)
        return True


def capture_sizes(most: int) -> list[int]:
    """The sizes to record for up to `most` decodes a step."""
    return list(CAPTURE_SIZES[: bisect_left(CAPTURE_SIZES, most) + 1])


def cuda_graph() -> Record:
    """Record into a CUDA graph."""

    def record(run: Callable[[], None]) -> Callable[[], object]:
        # kernels are compiled and workspaces taken before, outside the recording
        side = stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            run()
        return graph.replay

    pool = torch.cuda.graph_pool_handle()
    return record
