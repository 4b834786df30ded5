"""KV blocks as numbers: how many are free, and what a request needs. No identity, no order."""

from __future__ import annotations

from typing import Protocol

from mypy_extensions import mypyc_attr

from serving.request import Request

UNLIMITED = 1 << 62
"""Usable blocks where memory plays no part."""


class BlockListener(Protocol):
    """Told of what happens to blocks; the executor keeps the physical pages with it."""

    def released(self, request: Request, cached: int) -> None:
        """A request gives all its blocks up; the first `cached` of them stay in the cache."""

    def evicted(self, block: object) -> None:
        """A cached block is thrown out."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Blocks:
    """Counted KV blocks. A running request holds exactly ceil(computed / size) of them."""

    def __init__(self, usable: int | None, size: int, caching: bool = False) -> None:
        self.caching = caching  # whether full blocks can be hit
        self.usable = UNLIMITED if usable is None else usable
        self.size = size
        self.free = self.usable
        self.listener: BlockListener | None = None

    @property
    def used(self) -> int:
        """Blocks that requests hold."""
        return self.usable - self.free

    def ceil(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.size)

    def take(self, count: int) -> None:
        """Take blocks that were seen to be free."""
        self.free -= count

    def hit(self, request: Request) -> tuple[int, int]:
        """Cached blocks at the head of its known tokens: how many, and how many nobody holds."""
        return 0, 0

    def enter(self, request: Request, hits: int, upto: int) -> None:
        """Admit: hold the first `hits` cached blocks and take new ones up to `upto` tokens."""
        self.take(-(-upto // self.size))

    def filled(self, request: Request, upto: int) -> None:
        """Its tokens up to `upto` are scheduled: full blocks among them can be hit from now on."""

    def release(self, request: Request, tokens: int, full: int) -> None:
        """Give all its blocks up.

        Args:
            request: who.
            tokens: tokens that it holds blocks for.
            full: its tokens up to here may stay in the prefix cache.
        """
        self.free += -(-tokens // self.size)
        if self.listener is not None:
            self.listener.released(request, 0)
