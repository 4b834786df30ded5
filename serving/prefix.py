"""KV blocks with prefix caching: which full blocks are kept, hit and thrown out, as vLLM does it.

A block needs an identity only while it holds hashed tokens, so the free queue is a number of
blank blocks, taken first, and behind them the cached blocks that nobody holds, least recently
used first. Blocks that generated tokens fill can be hit only by their own request after a
preemption, so they get their identity when the request gives its blocks up.

Blocks that share their fate are kept as one `Run`: neighbours under one hash of the trace, which
may cover many KV blocks. A run is cut in two only where a hit or an eviction ends inside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from serving.blocks import Blocks
from serving.request import Request


class Run:
    """Neighbouring cached blocks `begin` to `end` of one key, held by the same requests."""

    __slots__ = ("begin", "end", "holders", "key", "newer", "older", "page", "rest")

    def __init__(self, key: int, begin: int, end: int, holders: int) -> None:
        self.key = key
        self.begin = begin
        self.end = end
        self.holders = holders
        self.rest: Run | None = None  # what was cut off its end
        self.older: Run = self  # neighbours in the queue of those that nobody holds
        self.newer: Run = self
        self.page = -1  # the executor's physical page, where a run is one block

    def __len__(self) -> int:
        return self.end - self.begin


class IdleQueue:
    """The runs that nobody holds, least recently used first: a ring of links, all verbs O(1)."""

    def __init__(self) -> None:
        self._ring = Run(0, 0, 0, 0)

    def first(self) -> Run:
        """The least recently used."""
        return self._ring.newer

    def append(self, run: Run) -> None:
        """It is the most recently used now."""
        self.insert_before(run, self._ring)

    def insert_before(self, run: Run, other: Run) -> None:
        """It is thrown out just before `other`."""
        run.older, run.newer = other.older, other
        run.older.newer = run
        other.older = run

    def remove(self, run: Run) -> None:
        """Somebody holds it again, or it is gone."""
        run.older.newer, run.newer.older = run.newer, run.older


class PrefixBlocks(Blocks):
    """Blocks with a prefix cache: longest cached run hits, least recently used is evicted."""

    def __init__(self, usable: int | None, size: int, per_hash: int = 1) -> None:
        """All blank.

        Args:
            usable: blocks, None for no limit.
            size: tokens of a block.
            per_hash: blocks that one of a request's hashes covers.
        """
        super().__init__(usable, size, caching=True)
        self._per_hash = per_hash
        self._blank = self.usable
        self._cached: dict[int, list[Run]] = {}  # by key, oldest first
        self._idle = IdleQueue()
        self._found: tuple[Request | None, list[tuple[Run, int]]] = (None, [])

    def take(self, count: int) -> None:
        """Take blank blocks, and evict from the least recently used end for the rest."""
        self.free -= count
        self._blank -= count
        while self._blank < 0:
            run = self._idle.first()
            evicted = min(-self._blank, len(run))
            run.end -= evicted
            self._blank += evicted
            if run.begin == run.end:
                self._drop(run)

    def _drop(self, run: Run) -> None:
        self._idle.remove(run)
        copies = self._cached[run.key]
        copies.remove(run)
        if not copies:
            del self._cached[run.key]
        if self.listener is not None:
            self.listener.evicted(run)

    # Hits

    def hit(self, request: Request) -> tuple[int, int]:
        """The longest row of cached full blocks, leaving at least one token to compute."""
        most = (request.prompt + request.sampled - 1) // self.size
        found: list[tuple[Run, int]] = []  # a run, and where in it the next one takes over
        at = idle = 0
        for key, begin, end in self._keys(request, 0, most):
            upto = begin
            for run, until in self._cover(key, begin, end):
                found.append((run, until))
                if not run.holders:
                    idle += until - upto
                upto = until
            at += upto - begin
            if upto < end:
                break
        self._found = (request, found)
        return at, idle

    def _keys(self, request: Request, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Blocks `first` to `last` of a request by key: (key, begin, end), as runs count them.

        Under a hash a block counts from the hash's first; under the request's own key, which is
        negative, from the request's first.
        """
        per, hashes = self._per_hash, request.hashes
        hashed = min(last, len(hashes) * per, request.prompt // self.size)
        while first < hashed:
            unit, begin = divmod(first, per)
            end = min(per, begin + hashed - first)
            yield hashes[unit], begin, end
            first += end - begin
        if first < last:
            yield ~request.index, first, last

    def _cover(self, key: int, at: int, end: int) -> Iterator[tuple[Run, int]]:
        """Runs that hold the key's blocks from `at` on, the oldest copy of each block."""
        copies = self._cached.get(key)
        if copies is None:
            return
        if len(copies) == 1:
            run = copies[0]
            if run.begin <= at < run.end:
                yield run, min(run.end, end)
            return
        while at < end:
            until = end
            for run in copies:
                if run.begin <= at < run.end:
                    at = min(until, run.end)
                    yield run, at
                    break
                if run.begin > at:
                    until = min(until, run.begin)  # an older copy begins there
            else:
                return

    def enter(self, request: Request, hits: int, upto: int) -> None:
        """Hold the blocks that `hit` has just found, take new ones up to `upto` tokens."""
        whose, found = self._found
        if whose is not request:
            raise RuntimeError("enter() must follow hit() of the same request")
        mine: list[Run] = []
        ends: list[int] = []
        request.cached, request.cached_ends = mine, ends
        for run, end in found:
            begin = ends[-1] if mine and mine[-1].key == run.key else run.begin
            while run.end <= begin and run.rest is not None:
                run = run.rest  # cut a moment ago, for an older copy in its middle
            if run.begin < begin:
                run = self._cut(run, begin)
            if end < run.end:
                self._cut(run, end)
            if not run.holders:
                self._idle.remove(run)
                self.free -= len(run)
            run.holders += 1
            mine.append(run)
            ends.append(end)
        request.identified = hits
        self._found = (None, [])
        self.take(-(-upto // self.size) - hits)

    def _cut(self, run: Run, at: int) -> Run:
        """Cut a run in two; returns the second part, which is thrown out first."""
        second = Run(run.key, at, run.end, run.holders)
        second.rest, run.rest, run.end = run.rest, second, at
        if not run.holders:
            self._idle.insert_before(second, run)
        copies = self._cached[run.key]
        copies.insert(copies.index(run) + 1, second)
        return second

    # Blocks that become full, and blocks given up

    def filled(self, request: Request, upto: int) -> None:
        """Full blocks of the prompt can be hit as soon as their tokens are scheduled."""
        hashed = len(request.hashes) * self._per_hash
        self._identify(request, min(upto // self.size, request.prompt // self.size, hashed))

    def _identify(self, request: Request, full: int) -> None:
        mine, ends = cast("list[Run]", request.cached), cast("list[int]", request.cached_ends)
        for key, begin, end in self._keys(request, request.identified, full):
            run = Run(key, begin, end, 1)
            self._cached.setdefault(key, []).append(run)
            mine.append(run)
            ends.append(end)
            request.identified += end - begin

    def release(self, request: Request, tokens: int, full: int) -> None:
        """Give all blocks up, tail first: cached ones to the recent end, the rest go blank."""
        self._identify(request, full // self.size)
        blank = -(-tokens // self.size) - request.identified
        self._blank += blank
        self.free += blank
        for run, end in zip(reversed(request.cached), reversed(request.cached_ends), strict=True):
            for part in reversed(parts(run, end)):
                part.holders -= 1
                if not part.holders:
                    self._idle.append(part)
                    self.free += len(part)
        if self.listener is not None:
            self.listener.released(request, len(request.cached))
        request.cached, request.cached_ends, request.identified = (), (), 0


def parts(run: Run, end: int) -> list[Run]:
    """What a run held up to `end` has been cut into since, in order."""
    found = [run]
    while run.end < end and run.rest is not None:
        run = run.rest
        found.append(run)
    return found
