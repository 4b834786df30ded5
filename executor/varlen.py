"""Attention through PyTorch's own `varlen_attn`, whose abilities depend on the release.

PyTorch 2.10 has `is_causal`; 2.11 has `window_size` in its place; 2.12 adds `enable_gqa`,
`seqused_k` and `block_table`, and reads pages only where FlashAttention 3 is active. What is
missing is done here: keys are gathered from their pages, and decodes go to a Triton kernel.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from executor.attention import Ragged, Rectangle, Rows
from executor.cache import LayerKV
from executor.sdpa import Sdpa

Decode = Callable[[Tensor, LayerKV, Rows], Tensor]


class VarlenAttention:
    """`torch.nn.attention.varlen.varlen_attn` for prompts, and for decodes where it reads pages.

    Args:
        paged: whether `varlen_attn` reads pages; where it does not, decodes go to Triton.
        spread: whether KV heads must be repeated for it.

    Raises:
        ImportError: this PyTorch has no `varlen_attn`, or Triton is needed and absent.
        TypeError: `paged` is asked of a release that knows no pages.
    """

    name = "varlen"
    page_multiple = 1
    capturable = True
    heads_first = False

    def __init__(self, paged: bool = False, spread: bool = False) -> None:
        from torch.nn.attention.varlen import varlen_attn

        known = inspect.signature(varlen_attn).parameters
        if paged and "block_table" not in known:
            raise TypeError("this PyTorch's varlen_attn has no block_table")
        self._varlen: Callable[..., Any] = varlen_attn
        self._causal: dict[str, Any] = (
            {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
        )
        if "enable_gqa" in known:
            self._causal["enable_gqa"] = True
        self.paged, self.spread = paged, spread
        self._sdpa = Sdpa()
        self._cells: tuple[Ragged | None, tuple[Tensor, Tensor]] = (
            None,
            (torch.empty(0), torch.empty(0)),
        )
        self._decode: Decode = self._decode_paged
        if not paged:
            from executor.paged_decode import paged_decode

            self._decode = paged_decode

    def varlen(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, ragged: Ragged) -> Tensor:
        """Prompts (see `Backend`): over the step's own keys, over pages, or over gathered keys."""
        if ragged.fresh:
            return self._call(q, k, v, ragged.cu_q, ragged.cu_q, ragged.max_q, ragged.max_k)
        if self.paged:
            return self._call(
                q, kv.k, kv.v, ragged.cu_q, None, ragged.max_q, ragged.max_k,
                seqused_k=ragged.used_k, block_table=ragged.table,
            )  # fmt: skip
        if self._cells[0] is not ragged:
            self._cells = (ragged, _cells(ragged, kv.k.shape[1]))
        keys, values = (x[self._cells[1]] for x in kv)
        return self._call(q, keys, values, ragged.cu_q, ragged.cu_k, ragged.max_q, ragged.max_k)

    def decode(self, q: Tensor, kv: LayerKV, rows: Rows) -> Tensor:
        """One query a row (see `Backend`)."""
        return self._decode(q, kv, rows)

    def padded(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, rectangle: Rectangle) -> Tensor:
        """Through SDPA (see `Backend`)."""
        return self._sdpa.padded(q, k, v, kv, rectangle)

    def _decode_paged(self, q: Tensor, kv: LayerKV, rows: Rows) -> Tensor:
        """Decodes as prompts of one token."""
        cu_q = torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device)
        return self._call(
            q, kv.k, kv.v, cu_q, None, 1, rows.max_k,
            seqused_k=rows.used_k, block_table=rows.table,
        )  # fmt: skip

    def _call(self, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`varlen_attn` under this release's names."""
        if self.spread:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[-2], dim=-2) for x in (k, v))
        out: Tensor = self._varlen(q, k, v, *args, **self._causal, **kwargs)
        return out


def _cells(ragged: Ragged, page_size: int) -> tuple[Tensor, Tensor]:
    """Page and place of every token attended to, in order, each [Σ kv_lens]."""
    # the size is known here: without it the device would be asked, and waited for
    total = int(ragged.kv_lens.sum())
    prompt = torch.repeat_interleave(ragged.used_k.long(), output_size=total)
    position = torch.arange(prompt.shape[0], device=prompt.device) - ragged.cu_k[prompt]
    return ragged.table[prompt, position // page_size], position % page_size
