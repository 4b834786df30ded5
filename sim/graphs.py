"""Decode steps under CUDA graphs: rows round up to the nearest captured batch size."""

from __future__ import annotations

from bisect import bisect_left

from serving.step import Features

CAPTURE_SIZES: tuple[int, ...] = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""The batch sizes that vLLM captures by default (`cudagraph_capture_sizes`)."""


def padded_decode_slots(rows: int) -> int:
    """The slots that a decode batch of `rows` computes: the next captured size, or none above."""
    if rows > CAPTURE_SIZES[-1] or rows < 1:
        return rows
    return CAPTURE_SIZES[bisect_left(CAPTURE_SIZES, rows)]


def pad_decode(f: Features) -> Features:
    """The features with a pure decode step's slots rounded up; other steps run without a graph.

    Only slots grow: the attention kernel skips the rows that are padding. `decode_slots` above
    `decode_tokens` is padding in the record, so apply this before the step is recorded.
    """
    if f.prefill_slots or not f.decode_slots:
        return f
    return f._replace(decode_slots=padded_decode_slots(f.decode_slots))
