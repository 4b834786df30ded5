"""A dry run on a GPU: what the largest step needs beside weights and KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from executor.grid import Cell
from executor.memory import GIB
from executor.profiler import Profiler
from sim.memory import DoesNotFitError

if TYPE_CHECKING:
    from executor.execute import Engine

PADDED_SLOTS = 8192
"""Slots of the padded batch that is tried; its memory a slot is that of any other."""


def largest_step(padded: bool, tokens: int, longest: int) -> Cell:
    """The step that is tried.

    Packed: one prompt that ends at the longest length, its context already there, and new prompts
    in what is left of the budget. Padded: rows of the largest width.

    Args:
        padded: the layout.
        tokens: the budget of a packed step.
        longest: tokens of the longest request; the width of a padded batch.
    """
    if padded:
        return Cell("dry run", ((0, longest),) * max(PADDED_SLOTS // longest, 1), width=longest)
    last = min(tokens, longest)
    whole, left = divmod(tokens - last, longest)
    chunks = [(longest - last, last)] + [(0, longest)] * whole + [(0, left)] * bool(left)
    return Cell("dry run", tuple(chunks))


def measured_slot_bytes(engine: Engine, padded: bool, tokens: int, longest: int) -> int:
    """Bytes a slot that the largest step needs at its peak; what it compiles is warm afterwards.

    Raises:
        DoesNotFitError: not even that step fits.
    """
    cell = largest_step(padded, tokens, longest)
    try:
        profiler = Profiler(engine, [cell])
        profiler.time(cell)  # compiles, and takes the workspaces that libraries keep
        held = torch.cuda.memory_allocated(engine.device)
        torch.cuda.reset_peak_memory_stats(engine.device)
        profiler.time(cell)
        peak = torch.cuda.max_memory_allocated(engine.device)
    except torch.cuda.OutOfMemoryError:
        free, total = torch.cuda.mem_get_info(engine.device)
        raise DoesNotFitError(
            f"{engine.shape.name}: a step of {cell.slots} tokens does not fit beside the weights, "
            f"{free / GIB:.1f} of {total / GIB:.1f} GiB are free; give fewer "
            "--max-num-batched-tokens or a smaller --max-model-len"
        ) from None
    del profiler
    torch.cuda.empty_cache()  # so that what is free is seen to be free
    return -(-(peak - held) // cell.slots)
