"""Hash ids of prompt blocks: from the lists of a file, and from one block size to another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError
from traces.trace import BlockHashes, Trace
from traces.trouble import counted


def fits_blocks(
    per_row: NDArray[np.int64], prompt: NDArray[np.int64], size: NDArray[np.int64] | int
) -> NDArray[np.bool_]:
    """Whether each row has one id a block, the partial last one counted or not."""
    full = prompt // size
    fits: NDArray[np.bool_] = (per_row == full) | (per_row == full + (prompt % size > 0))
    return fits


def block_hashes(
    ids: NDArray[np.int64],
    per_row: NDArray[np.int64],
    prompt: NDArray[np.int64],
    block_tokens: NDArray[np.int64] | int | None,
    source: str,
) -> tuple[BlockHashes, tuple[str, ...]]:
    """Flat ids, so many per row, as `BlockHashes`, and what to say of them.

    Where a file hashes full blocks only, the partial block gets an id of its own (never shared).
    Rows have been checked against `block_tokens` where it is known; None looks for the one power of
    two that fits.

    Raises:
        TraceError: several block sizes, or none or more than one that fits.
    """
    notes: tuple[str, ...] = ()
    if block_tokens is None:
        size = _only_block_size(per_row, prompt, source)
        notes += (f"hash_ids: blocks of {size} tokens, the only power of two that fits all rows",)
    else:
        sizes = np.unique(block_tokens)
        if len(sizes) != 1 or sizes[0] < 1:
            raise TraceError(f"{source}: block_tokens must be the same number above 0 in all rows.")
        size = int(sizes[0])
    blocks = -(-prompt // size)
    short = per_row < blocks
    if short.any():
        ends = np.cumsum(per_row)[short]
        fresh = min(0, int(ids.min())) - 1 - np.arange(len(ends), dtype=np.int64)
        ids = np.insert(ids, ends, fresh)
        partial = counted(len(ends), "partial block")
        notes += (f"hash_ids cover full blocks only: {partial} not shared",)
    offsets = np.zeros(len(prompt) + 1, np.int64)
    np.cumsum(blocks, out=offsets[1:])
    return BlockHashes(ids, offsets, size), notes


def _only_block_size(per_row: NDArray[np.int64], prompt: NDArray[np.int64], source: str) -> int:
    """The one power of two for which every row has ceil(prompt / size) ids."""
    fits: list[int] = [
        size
        for size in (2**power for power in range(21))
        if bool(np.all(-(-prompt // size) == per_row))
    ]
    if len(fits) == 1:
        return fits[0]
    found = " and ".join(str(size) for size in fits) or "none"
    raise TraceError(
        f"{source}: hash_ids do not say how many tokens an id covers (block sizes that "
        f"fit every row: {found}). Add a column block_tokens."
    )


def reblock(trace: Trace, block_tokens: int) -> Trace:
    """The same trace with hash ids of another block size, as exact as the old ones allow.

    Ids are chained: one stands for all tokens up to its block's end. So a larger block's id is that
    of its last part; the parts of a larger block are shared exactly when it is.

    Raises:
        TraceError: neither block size is a multiple of the other.
    """
    hashes = trace.hashes
    if hashes is None or hashes.block_tokens == block_tokens:
        return trace
    blocks = -(-trace.prompt_tokens // block_tokens)
    offsets = np.concatenate([[0], np.cumsum(blocks)])
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
    begins = np.repeat(hashes.offsets[:-1], blocks)
    if block_tokens % hashes.block_tokens == 0:
        times = block_tokens // hashes.block_tokens
        last = np.repeat(np.diff(hashes.offsets) - 1, blocks)
        ids = hashes.ids[begins + np.minimum(within * times + times - 1, last)]
    elif hashes.block_tokens % block_tokens == 0:
        times = hashes.block_tokens // block_tokens
        # Numbered anew, so that no id grows past 64 bits.
        numbers = np.unique(hashes.ids, return_inverse=True)[1]
        ids = numbers[begins + within // times] * times + within % times
    else:
        raise TraceError(
            f"{trace.name}: hash ids of {hashes.block_tokens}-token blocks cannot become "
            f"{block_tokens}-token ones; one must be a multiple of the other."
        )
    return replace(trace, hashes=BlockHashes(ids, offsets, block_tokens))
