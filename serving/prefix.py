"""KV blocks with prefix caching: which full blocks are kept, hit and thrown out, as vLLM does it.

A block needs an identity only while it holds hashed tokens, so the free queue is a number of
blank blocks, taken first, and behind them the cached blocks that nobody holds, least recently
used first. Blocks that generated tokens fill can be hit only by their own request after a
preemption, so they get their identity when the request gives its blocks up.
"""

from __future__ import annotations

from collections import OrderedDict

from serving.blocks import Blocks
from serving.request import Request


class CachedBlock:
    """A full block whose tokens are known by their hash."""

    __slots__ = ("holders", "key", "page")

    def __init__(self, key: int) -> None:
        self.key = key
        self.holders = 1
        self.page = -1  # the executor's physical page


class PrefixBlocks(Blocks):
    """Blocks with a prefix cache: longest cached run hits, least recently used is evicted."""

    caching = True

    def __init__(self, usable: int | None, size: int) -> None:
        super().__init__(usable, size)
        self._blank = self.usable
        self._cached: dict[int, CachedBlock] = {}
        self._copies: dict[int, list[CachedBlock]] = {}
        self._idle: OrderedDict[CachedBlock, None] = OrderedDict()
        self._found: tuple[Request | None, list[CachedBlock]] = (None, [])

    def _key(self, request: Request, i: int) -> int:
        """Identity of block `i`: its prompt hash, or one that is the request's own (negative)."""
        hashes = request.hashes
        return hashes[i] if i < len(hashes) else ~((request.index << 32) | i)

    def take(self, count: int) -> None:
        """Take blank blocks, and evict from the least recently used end for the rest."""
        self.free -= count
        self._blank -= count
        while self._blank < 0:
            self._evict()
            self._blank += 1

    def _evict(self) -> None:
        block, _ = self._idle.popitem(last=False)
        key = block.key
        copies = self._copies.get(key)
        if copies is None:
            del self._cached[key]
        else:
            if self._cached[key] is block:
                self._cached[key] = copies.pop(0)
            else:
                copies.remove(block)
            if not copies:
                del self._copies[key]
        if self.listener is not None:
            self.listener.evicted(block)

    def hit(self, request: Request) -> tuple[int, int]:
        """The longest run of cached full blocks, leaving at least one token to compute."""
        most = (request.prompt + request.sampled - 1) // self.size
        cached = self._cached
        found: list[CachedBlock] = []
        for key in request.hashes[:most]:
            block = cached.get(key)
            if block is None:
                break
            found.append(block)
        else:
            for i in range(len(found), most):
                block = cached.get(self._key(request, i))
                if block is None:
                    break
                found.append(block)
        self._found = (request, found)
        return len(found), sum(1 for block in found if not block.holders)

    def enter(self, request: Request, hits: int, upto: int) -> None:
        """Hold the blocks that `hit` has just found, take new ones up to `upto` tokens."""
        whose, found = self._found
        if whose is not request or len(found) < hits:
            raise RuntimeError("enter() must follow hit() of the same request")
        idle = self._idle
        for block in found:
            if not block.holders:
                del idle[block]
                self.free -= 1
            block.holders += 1
        request.cached = found
        self._found = (None, [])
        self.take(-(-upto // self.size) - len(found))

    def filled(self, request: Request, upto: int) -> None:
        """Full blocks of the prompt can be hit as soon as their tokens are scheduled."""
        self._identify(request, min(upto // self.size, len(request.hashes)))

    def _identify(self, request: Request, full: int) -> None:
        mine, cached = request.cached, self._cached
        for i in range(len(mine), full):
            block = CachedBlock(self._key(request, i))
            mine.append(block)
            if cached.setdefault(block.key, block) is not block:
                self._copies.setdefault(block.key, []).append(block)

    def release(self, request: Request, tokens: int, full: int) -> None:
        """Give all blocks up, tail first: cached ones to the recent end, the rest go blank."""
        self._identify(request, full // self.size)
        mine, idle = request.cached, self._idle
        blank = -(-tokens // self.size) - len(mine)
        self._blank += blank
        self.free += blank
        for block in reversed(mine):
            block.holders -= 1
            if not block.holders:
                idle[block] = None
                self.free += 1
        if self.listener is not None:
            self.listener.released(request, len(mine))
        request.cached = []
