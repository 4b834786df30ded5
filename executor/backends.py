"""Which attention runs here: a probe of what is installed and gives the right numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from executor.attention import Backend, Ragged, Rows
from executor.cache import LayerKV
from executor.flash import FlashAttention
from executor.sdpa import Sdpa
from executor.varlen import VarlenAttention
from sim.models import Model

NAMES = ("flash-attn", "varlen", "sdpa")
"""Names of `--attention`, in the order in which they are tried on a GPU."""


class AttentionError(ValueError):
    """An attention backend that cannot run here, with the reasons."""


def choose(
    shape: Model,
    dtype: torch.dtype,
    device: torch.device | str,
    name: str | None = None,
    page_size: int | None = None,
) -> Backend:
    """The attention backend for a model on a device: the one named, or the best that works.

    On a GPU each candidate first computes a small case, which must agree with the reference: what
    imports does not always run, nor run right.

    Raises:
        AttentionError: an unknown name; or no candidate works, with what each one said; or a page
            size that the named one does not take.
    """
    if name is not None and name not in NAMES:
        raise AttentionError(f"--attention {name}: not one of {', '.join(NAMES)}")
    device = torch.device(device)
    wanted = (name,) if name else _candidates(device)
    reasons = []
    for candidate in wanted:
        for make in _makers(candidate):
            try:
                backend = make()
                _fits(backend, page_size)
                if backend.name != "sdpa":
                    _check(backend, shape, dtype, device)
            except Exception as error:  # a kernel's compiler raises what it likes
                reasons.append(f"{candidate}: {_first_line(error)}")
            else:
                return backend
    raise AttentionError(
        f"no attention backend runs {shape.name} in {dtype} on {device}:\n  " + "\n  ".join(reasons)
    )


def _candidates(device: torch.device) -> tuple[str, ...]:
    return NAMES if device.type == "cuda" else ("sdpa",)


def _makers(name: str) -> list[Callable[[], Backend]]:
    """Ways to build a backend, the best first."""
    if name == "flash-attn":
        return [FlashAttention]
    if name == "varlen":
        return [
            lambda: VarlenAttention(paged=True),
            VarlenAttention,
            lambda: VarlenAttention(spread=True),
        ]
    return [Sdpa]


def _fits(backend: Backend, page_size: int | None) -> None:
    if page_size is not None and page_size % backend.page_multiple:
        raise AttentionError(
            f"takes pages of a multiple of {backend.page_multiple} tokens, "
            f"--block-size asks for {page_size}"
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# The small case --------------------------------------------------------------------------------


def _check(backend: Backend, shape: Model, dtype: torch.dtype, device: torch.device) -> None:
    """Prompts with and without contexts, and decodes, against SDPA.

    Raises:
        RuntimeError: it computes something else.
    """
    reference = Sdpa()
    page_size = max(16, backend.page_multiple)
    case = Case(shape, [7, 40, 33], [7, 90, 50], [1, 17, 70], page_size, dtype, device)
    for part, got, right in (
        ("fresh prompts", case.fresh(backend), case.fresh(reference)),
        ("prompts after a context", case.chunks(backend), case.chunks(reference)),
        ("decodes", case.decodes(backend), case.decodes(reference)),
    ):
        worst = float((got.float() - right.float()).abs().max())
        if not worst <= (1e-4 if dtype == torch.float32 else 3e-2):
            raise RuntimeError(f"its result for {part} is off by {worst:.3g}")


class Case:
    """A small random attention problem, laid out as each backend stores its pages.

    Args:
        q_lens, kv_lens: prompts: tokens computed, and attended to.
        decodes: tokens attended to by each decode.
    """

    def __init__(
        self,
        shape: Model,
        q_lens: list[int],
        kv_lens: list[int],
        decodes: list[int],
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
        seed: int = 0,
    ) -> None:
        self.device, self.page_size = device, page_size
        random = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=random).to(device, dtype)

        tables = -(-max(kv_lens + decodes) // page_size)
        pages = tables * max(len(kv_lens), len(decodes))
        self.memory = normal(2, pages, page_size, shape.kv_heads, shape.head_dim)
        self.table = torch.randperm(pages, generator=random, dtype=torch.int32)
        self.table = self.table.view(-1, tables).to(device)
        self.q = normal(sum(q_lens), shape.heads, shape.head_dim)
        self.q_decode = normal(len(decodes), shape.heads, shape.head_dim)
        self.k, self.v = normal(2, sum(q_lens), shape.kv_heads, shape.head_dim)
        owner = np.repeat(np.arange(len(q_lens)), q_lens)
        last = np.cumsum(q_lens)[owner] - 1 - np.arange(len(owner))  # tokens before the end
        position = torch.from_numpy(np.array(kv_lens)[owner] - 1 - last).to(device)
        page = self.table[torch.from_numpy(owner).to(device), position // page_size]
        self.memory[0][page, position % page_size] = self.k
        self.memory[1][page, position % page_size] = self.v
        self._ragged = self.ragged(q_lens, kv_lens)
        self._fresh = self.ragged(q_lens, q_lens)
        self._rows = Rows(
            np.array(decodes, np.int64), self._ints(decodes), self.table[: len(decodes)]
        )

    def ragged(self, q_lens: list[int], kv_lens: list[int]) -> Ragged:
        """Prompts of these lengths."""
        bounds = [self._ints([0, *np.cumsum(lengths)]) for lengths in (q_lens, kv_lens)]
        return Ragged(
            np.array(q_lens, np.int64), np.array(kv_lens, np.int64),
            bounds[0], bounds[1], self._ints(kv_lens), self.table[: len(q_lens)],
        )  # fmt: skip

    def pages(self, backend: Backend) -> LayerKV:
        """The pages as `backend` likes them."""
        if not backend.heads_first:
            return LayerKV(*self.memory)
        return LayerKV(*self.memory.transpose(2, 3).contiguous().transpose(2, 3))

    def fresh(self, backend: Backend) -> Tensor:
        """Prompts without a context."""
        return backend.varlen(self.q, self.k, self.v, self.pages(backend), self._fresh)

    def chunks(self, backend: Backend) -> Tensor:
        """Prompts with contexts, whose own keys are what the pages hold."""
        return backend.varlen(self.q, self.k, self.v, self.pages(backend), self._ragged)

    def decodes(self, backend: Backend) -> Tensor:
        """Decodes."""
        return backend.decode(self.q_decode, self.pages(backend), self._rows)

    def _ints(self, values: list[int]) -> Tensor:
        return torch.tensor([int(x) for x in values], dtype=torch.int32, device=self.device)
