"""Memory for keys and values: pages that requests own, or one rectangle for a padded batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sim.models import Model


class LayerKV(NamedTuple):
    """One layer's keys and values, both of the same shape."""

    k: Tensor
    v: Tensor


class KVCache:
    """The keys and values of all layers in one piece of memory, seen in two ways.

    Packed steps see pages, [pages + 1, page_size, kv_heads, head_dim] a layer; the last page
    belongs to nobody and takes what is computed for nobody. A padded batch runs alone until it
    drains, so it sees the same memory as a rectangle, [rows, kv_heads, capacity, head_dim].

    Args:
        shape: the model.
        pages: pages that requests can own.
        page_size: tokens a page.
        heads_first: store each page head by head, as the CPU likes it; the views are the same.
    """

    def __init__(
        self,
        shape: Model,
        pages: int,
        page_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        heads_first: bool = False,
    ) -> None:
        self.shape, self.pages, self.page_size = shape, pages, page_size
        kv_heads, head_dim = shape.kv_heads, shape.head_dim
        inner = (kv_heads, page_size) if heads_first else (page_size, kv_heads)
        # zeros, not whatever was there: a masked key counts 0 times its value, and 0 * nan is nan
        size = (shape.layers, 2, pages + 1, *inner, head_dim)
        self.memory = torch.zeros(size, dtype=dtype, device=device)
        pages_seen = self.memory.transpose(3, 4) if heads_first else self.memory
        self.layers = [LayerKV(*layer) for layer in pages_seen]

    @property
    def scratch(self) -> int:
        """The page that belongs to nobody."""
        return self.pages

    def rectangle(self, rows: int, capacity: int) -> list[LayerKV]:
        """All layers as [rows, kv_heads, capacity, head_dim].

        Raises:
            ValueError: more tokens than the pages hold.
        """
        held = self.pages * self.page_size
        if rows * capacity > held:
            raise ValueError(
                f"a padded batch of {rows} rows x {capacity} tokens needs {rows * capacity} tokens "
                f"of KV cache, which holds {held}"
            )
        size = (2, rows, self.shape.kv_heads, capacity, self.shape.head_dim)
        count = size[1] * size[2] * size[3] * size[4]
        # keys and values each from their own half, which the pages' halves are at least as big as
        halves = self.memory.flatten(2)[:, :, :count]
        return [LayerKV(*layer.view(size)) for layer in halves]


def page_bytes(shape: Model, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page over all layers."""
    numbers = 2 * shape.layers * page_size * shape.kv_heads * shape.head_dim
    return numbers * torch.empty((), dtype=dtype).element_size()
