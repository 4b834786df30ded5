"""The arithmetic and the bytes that a step's useful tokens need: the numerators of MFU and MBU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sim.models import Model, dtype_bytes

_FLOP_COLUMNS = (
    "prefill_tokens",
    "decode_tokens",
    "prefill_useful_pairs",
    "decode_useful_pairs",
    "sampled_rows",
)
_BYTE_COLUMNS = (
    "prefill_tokens",
    "decode_tokens",
    "prefill_kv",
    "decode_useful_pairs",
    "sampled_rows",
)


def useful_flops(model: Model, columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float64]:
    """Useful arithmetic of steps, FLOPs, shape [steps]; padding does not count."""
    c = {k: np.asarray(columns[k], np.float64) for k in _FLOP_COLUMNS}
    tokens = c["prefill_tokens"] + c["decode_tokens"]
    pairs = c["prefill_useful_pairs"] + c["decode_useful_pairs"]
    return (
        tokens * (2.0 * model.layers * model.layer_linear_parameters)
        + pairs * (4.0 * model.layers * model.heads * model.head_dim)
        + c["sampled_rows"] * (2.0 * model.embedding_parameters)
    )


def useful_bytes(
    model: Model, dtype: str, kv_dtype: str, columns: Mapping[str, NDArray[np.int64]]
) -> NDArray[np.float64]:
    """Bytes that steps must move, shape [steps].

    The layers' weights once a step, the LM head once where a row is sampled, the KV that prefill
    and decode attention read, and the KV that is written.
    """
    c = {k: np.asarray(columns[k], np.float64) for k in _BYTE_COLUMNS}
    size = dtype_bytes(dtype)
    layers = float(model.layers * model.layer_linear_parameters * size)
    head = float(model.embedding_parameters * max(size, 2))
    kv = float(model.kv_bytes_per_token(kv_dtype))
    tokens = c["prefill_tokens"] + c["decode_tokens"]
    moved = c["prefill_kv"] + c["decode_useful_pairs"] + c["prefill_tokens"]
    return (tokens > 0) * layers + (c["sampled_rows"] > 0) * head + moved * kv
