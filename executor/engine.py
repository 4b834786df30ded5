"""The executor's engine: a model, its KV memory and its tokens; steps go in, time comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from executor.attention import Backend, Counter
from executor.backends import choose
from executor.cache import KVCache
from executor.graphs import Graphs, Record
from executor.inputs import Batch, Inputs
from executor.model import DTYPES, Elementwise, Transformer, fused
from executor.pages import Pager
from executor.runner import Runner, Running
from executor.tokens import Tokens
from executor.weights import load, randomise
from serving.step import Step
from sim.models import Model, ModelError, load_model


@dataclass(frozen=True)
class Loaded:
    """A model with weights on its device, and the attention that it runs with."""

    model: Transformer
    backend: Backend

    @property
    def shape(self) -> Model:
        """The model's shape."""
        return self.model.shape


def load_executor(
    name_or_path: str | Path,
    device: str = "cpu",
    dtype: str | None = None,
    attention: str | None = None,
    page_size: int | None = None,
    seed: int = 0,
    compile: bool | None = None,
) -> Loaded:
    """A model by name (random weights) or from a Hugging Face folder (its own).

    Args:
        name_or_path: a built-in model, a `config.json` (random weights too), or a folder.
        device: as PyTorch names it.
        dtype: fp32, bf16 or fp16; by default fp32 on the CPU and bf16 on a GPU.
        attention: forces a backend; by default the best that works.
        page_size: KV block size that the backend must take, if it is fixed already.
        seed: of random weights.
        compile: fuse elementwise functions; by default on a GPU only.

    Raises:
        ModelError: an unknown model or dtype, unreadable weights, a device that is not there.
        AttentionError: no backend runs it.
    """
    shape, where = load_model(name_or_path), torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"--device {device}: PyTorch {torch.__version__} sees no CUDA device")
    name = dtype or ("fp32" if where.type == "cpu" else "bf16")
    if name not in DTYPES:
        raise ModelError(f"--dtype {name}: not one of {', '.join(DTYPES)}")
    backend = choose(shape, DTYPES[name], where, attention, page_size)
    fuse = where.type == "cuda" if compile is None else compile
    model = Transformer(shape, DTYPES[name], where, fused() if fuse else Elementwise())
    folder = Path(name_or_path)
    if folder.is_dir():
        return Loaded(load(model, folder), backend)
    return Loaded(randomise(model, seed), backend)


class Engine:
    """Runs the steps of one planner.

    `pager` is to be told of the planner's blocks (`planner.blocks.listener = engine.pager`).

    Args:
        loaded: the model and its attention.
        tokens: of all requests that will come.
        pages: KV pages that requests can own: the planner's usable blocks.
        page_size: tokens a page: the planner's block size.
        longest: most tokens of a request, prompt + output.
        graphs: batch sizes of decode steps to record as CUDA graphs; none: no graphs.
        record: see `Graphs`.
    """

    def __init__(
        self,
        loaded: Loaded,
        tokens: Tokens,
        pages: int,
        page_size: int,
        longest: int,
        graphs: Sequence[int] = (),
        record: Record | None = None,
    ) -> None:
        model, backend = loaded.model, loaded.backend
        self.loaded, self.tokens, self.counter = loaded, tokens, Counter()
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

    def batch(self, step: Step) -> Batch | None:
        """The inputs of a step, None if it has no rows; before the next plan (see `Inputs`)."""
        return self.inputs.batch(step)

    def launch(self, batch: Batch) -> Running:
        """Start a batch (see `Runner`)."""
        return self.runner.launch(batch)

    def run(self, step: Step) -> float:
        """One step from plan to end; seconds that the device took."""
        batch = self.batch(step)
        return 0.0 if batch is None else self.launch(batch).wait()
