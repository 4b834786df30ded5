"""Planned steps, one after the other: KV memory, page tables, inputs and runner in one place."""

from __future__ import annotations

from collections.abc import Sequence

from executor.attention import Backend, Counter
from executor.cache import KVCache
from executor.graphs import Graphs, Record
from executor.inputs import Inputs
from executor.model import Transformer
from executor.pages import Pager
from executor.runner import Runner
from executor.tokens import Tokens
from serving.step import Step


class Steps:
    """What runs the steps of one planner, without a clock.

    `pager` is to be told of the planner's blocks (`planner.blocks.listener = steps.pager`).

    Args:
        model: with weights.
        backend: its attention.
        tokens: of all requests that will come.
        pages: KV pages that requests can own: the planner's usable blocks.
        page_size: tokens a page: the planner's block size.
        longest: most tokens of a request, prompt + output.
        graphs: batch sizes of decode steps to record as CUDA graphs; none: no graphs.
        record: see `Graphs`.
    """

    def __init__(
        self,
        model: Transformer,
        backend: Backend,
        tokens: Tokens,
        pages: int,
        page_size: int,
        longest: int,
        graphs: Sequence[int] = (),
        record: Record | None = None,
    ) -> None:
        self.tokens, self.counter = tokens, Counter()
        self.cache = KVCache(
            model.shape, pages, page_size, model.dtype, model.device, backend.heads_first
        )
        self.pager = Pager(pages, page_size, longest)
        self.inputs = Inputs(tokens, self.cache, self.pager, backend, self.counter)
        self.runner = Runner(model, tokens)
        if graphs:
            recorded = Graphs(
                graphs, self.cache, backend, longest, tokens.nowhere, self.counter,
                self.runner.forward, record,
            )  # fmt: skip
            self.runner.replay = recorded.replay

    def run(self, step: Step) -> float:
        """One step from plan to end; seconds that the device took. Before the next plan."""
        batch = self.inputs.batch(step)
        return 0.0 if batch is None else self.runner.launch(batch).wait()
