"""How much KV memory a run gets: counted in blocks, from what the device has left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from executor.cache import page_bytes
from policies.compose import Point, Settings
from policies.drain import Activations
from policies.sglang.limits import SPARE_TOKENS
from sim.memory import DoesNotFitError, logits_bytes, slot_bytes
from sim.models import Model
from traces.trace import Trace

CPU_SHARE, GPU_SHARE = 0.25, 0.9
"""Shares of the free memory that a run takes unless told otherwise."""

GIB = float(1 << 30)


class Room(NamedTuple):
    """Memory for keys and values, and what a padded batch may use beside it."""

    blocks: int
    activations: Activations | None
    why: str
    """How the number of blocks came about, for the record."""


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device, bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    info = Path("/proc/meminfo")
    if info.is_file():
        line = next(x for x in info.read_text().splitlines() if x.startswith("MemAvailable"))
        return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def check_weights(shape: Model, dtype: torch.dtype, device: torch.device) -> None:
    """Whether the weights fit.

    Raises:
        DoesNotFitError: gives both sizes.
    """
    need, free = shape.parameters() * dtype.itemsize, free_bytes(device)
    if need > free:
        raise DoesNotFitError(
            f"{shape.name} in {dtype} needs {need / GIB:.1f} GiB for its weights, {device} has "
            f"{free / GIB:.1f} GiB free; take a smaller --model or --dtype bf16"
        )


def room(
    shape: Model,
    dtype: torch.dtype,
    device: torch.device,
    point: Point,
    settings: Settings,
    trace: Trace,
    tokens: int,
    override: int | None = None,
    share: float | None = None,
    slot: int | None = None,
) -> Room:
    """Blocks for a run whose weights are loaded.

    A padded batch is as large as the policy makes it, so its activations get half of the memory;
    a packed step's are bounded by its token budget.

    Args:
        shape, dtype, device: the model, as it runs.
        point, settings: the policy.
        trace: more blocks than it can ever use are not asked for.
        tokens: most tokens of a packed step.
        override: blocks as `--num-gpu-blocks-override` counts them, one of them the null block.
        share: of the free memory.
        slot: bytes of activations a slot, as a dry run found them; None: estimated.

    Raises:
        DoesNotFitError: less than one block; gives the sizes.
        ValueError: a share outside (0, 1].
    """
    share = share or (GPU_SHARE if device.type == "cuda" else CPU_SHARE)
    if not 0 < share <= 1:
        raise ValueError(f"--gpu-memory-utilization must be over 0 and at most 1, not {share:g}")
    free, block = free_bytes(device), page_bytes(shape, settings.block_size, dtype)
    if slot is None:
        # the tensors between two matrix products, and as much again for what attention copies
        slot = slot_bytes(shape) * dtype.itemsize
    logits = logits_bytes(shape, settings.max_num_seqs) * dtype.itemsize // 2
    budget = int(free * share) - logits
    padded = point.layout != "packed"
    spare = budget // 2 if padded else slot * tokens
    blocks = (budget - spare) // block
    said = f"{share:g} of {free / GIB:.1f} GiB free on {device.type}"
    if override is not None:
        blocks, said = override - 1, f"--num-gpu-blocks-override {override}"
        if blocks * block > free:
            raise DoesNotFitError(
                f"{said}: {blocks * block / GIB:.1f} GiB of KV cache, {free / GIB:.1f} GiB are free"
            )
    elif blocks < 1:
        raise DoesNotFitError(
            f"{shape.name}: {said} leaves {(budget - spare) / GIB:.2f} GiB for KV blocks of "
            f"{block / GIB:.4f} GiB; give fewer --max-num-batched-tokens or --max-num-seqs"
        )
    elif (most := _most(point, settings, trace)) < blocks:
        blocks, said = most, "all that the trace can use at once"
    return Room(blocks, Activations(max(spare, slot), 0, slot) if padded else None, said)


def _most(point: Point, settings: Settings, trace: Trace) -> int:
    """KV blocks that the trace can fill at once, at most."""
    seats, size = settings.max_num_seqs, settings.block_size
    lengths = trace.prompt_tokens + trace.output_tokens
    if point.layout != "packed":
        width = max(settings.max_model_len, max(settings.bucket_bounds))
        return min(seats, len(trace)) * -(-(width + int(trace.output_tokens.max())) // size)
    if point.lifecycle == "sglang":  # it keeps a page back for each, and wants room to spare
        lengths = lengths + size + SPARE_TOKENS
    blocks = -(-np.sort(lengths)[::-1] // size)
    if not settings.enable_prefix_caching:
        blocks = blocks[:seats]
    return int(blocks.sum()) + 1
