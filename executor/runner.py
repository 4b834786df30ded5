"""Runs batches: the model's forward pass, greedy sampling on the device, and the time it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from executor.device import event
from executor.inputs import Batch
from executor.model import Transformer
from executor.tokens import Tokens


class Running(Protocol):
    """A step under way."""

    def wait(self) -> float:
        """Wait until it has ended; seconds that the device took for it."""


class Ended:
    """A step that ended before anybody asked."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def wait(self) -> float:
        """Seconds that it took."""
        return self._seconds


class OnGpu:
    """A step that a GPU is working on, between two CUDA events."""

    def __init__(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> None:
        self._begin, self._end = begin, end

    def wait(self) -> float:
        """Wait for the second event; seconds from the first."""
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) / 1e3


class Runner:
    """A model and the tokens that it reads and writes.

    Args:
        model: with weights.
        tokens: inputs come from here, and what is sampled goes here.
        replay: runs a batch in another way if it can (`Graphs.replay`), and says whether it did.
    """

    def __init__(
        self,
        model: Transformer,
        tokens: Tokens,
        replay: Callable[[Batch], bool] | None = None,
    ) -> None:
        self.model, self.tokens, self.replay = model, tokens, replay

    def launch(self, batch: Batch) -> Running:
        """Start a step. On the CPU it has ended when this returns."""
        if self.model.device.type == "cpu":
            begin = time.perf_counter()
            if self.replay is None or not self.replay(batch):
                self.forward(batch)
            return Ended(time.perf_counter() - begin)
        events = event(timing=True), event(timing=True)
        events[0].record()
        if self.replay is None or not self.replay(batch):
            self.forward(batch)
        events[1].record()
        return OnGpu(*events)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> None:
        """One forward pass; the most likely token of each row goes to its target."""
        ids = self.tokens.ids
        inputs = ids.index_select(0, batch.cells)
        logits = self.model(inputs, batch.positions, batch.attend, batch.rows)
        if batch.rows.shape[0]:
            ids.index_put_((batch.targets,), logits.argmax(-1).to(ids.dtype))
