"""Attention through flash-attn 2 (`pip install flash-attn`): prompts and decodes over pages."""

from __future__ import annotations

from torch import Tensor

from executor.attention import Ragged, Rectangle, Rows
from executor.cache import LayerKV
from executor.sdpa import Sdpa


class FlashAttention:
    """flash-attn's `flash_attn_varlen_func` and `flash_attn_with_kvcache`; SDPA where padded.

    Raises:
        ImportError: flash-attn is not installed, or is too old to know pages.
    """

    name = "flash-attn"
    page_multiple = 256
    capturable = True
    heads_first = False

    def __init__(self) -> None:
        from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

        self._varlen, self._with_kvcache = flash_attn_varlen_func, flash_attn_with_kvcache
        self._sdpa = Sdpa()

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, ragged: Ragged) -> Tensor:
        """Prompts over their pages (see `Backend`); without contexts, over the step's own keys."""
        if ragged.fresh:
            keys, values, cu_k, table = k, v, ragged.cu_q, None
        else:
            keys, values, cu_k, table = kv.k, kv.v, ragged.cu_k, ragged.table
        out: Tensor = self._varlen(
            q, keys, values, ragged.cu_q, cu_k, ragged.max_q, ragged.max_k,
            causal=True, block_table=table,
        )  # fmt: skip
        return out

    def decode(self, q: Tensor, kv: LayerKV, rows: Rows) -> Tensor:
        """One query a row (see `Backend`)."""
        out: Tensor = self._with_kvcache(
            q[:, None], kv.k, kv.v, cache_seqlens=rows.used_k, block_table=rows.table, causal=True
        )
        return out[:, 0]

    def padded(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, rectangle: Rectangle) -> Tensor:
        """Through SDPA (see `Backend`)."""
        return self._sdpa.padded(q, k, v, kv, rectangle)
