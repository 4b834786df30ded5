"""How wide a padded batch is: to the model's limit, to its bucket's bound, or to its longest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol


class Padding(Protocol):
    """The width that a batch is padded to."""

    def width(self, longest: int) -> int:
        """The width for a batch whose longest prompt has `longest` tokens."""


class PadToLimit:
    """Static padding: every prompt to the longest request that the model takes."""

    def __init__(self, max_model_len: int) -> None:
        self.limit = max_model_len

    def width(self, longest: int) -> int:
        """The limit, whatever the prompts are."""
        return max(self.limit, longest)


class PadToBucket:
    """To the bound of the longest prompt's bucket; beyond the last bound, to the longest."""

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = tuple(bounds)

    def width(self, longest: int) -> int:
        """The smallest bound that is not below the longest prompt."""
        at = bisect_left(self.bounds, longest)
        return self.bounds[at] if at < len(self.bounds) else longest


class PadToLongest:
    """Dynamic padding: to the longest prompt of the batch."""

    def width(self, longest: int) -> int:
        """The longest prompt."""
        return longest
