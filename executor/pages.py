"""Which page of KV memory each request's tokens are in.

Whoever plans only counts blocks: how many a request holds, which it gives up. The pager gives the
counted blocks a place, and touches only what changes.
"""

from __future__ import annotations

from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from serving.request import Request
from serving.step import Work


class Entry(Protocol):
    """A block whose contents are known by hash, and so may outlive its request."""

    page: int
    """Its page; -1 while it has none."""


class Pager:
    """Page tables of the running requests, one row each.

    Args:
        pages: pages to give out.
        page_size: tokens a page.
        longest: most tokens that a request may reach.
    """

    def __init__(self, pages: int, page_size: int, longest: int) -> None:
        self.page_size = page_size
        self.width = -(-longest // page_size)
        self.tables: NDArray[np.int32] = np.zeros((16, self.width), np.int32)
        """Pages of each row, in order of the tokens; only the first `held` of a row count."""
        self.held: NDArray[np.int64] = np.zeros(16, np.int64)
        self._bound = np.zeros(16, np.int64)  # leading pages that their entry knows
        self._written = np.zeros(16, np.int64)  # tokens whose keys are, or are being, written
        self._free = list(range(pages - 1, -1, -1))  # the next to give out is last
        self._free_rows = list(range(15, -1, -1))
        self._row: NDArray[np.int64] = np.full(64, -1, np.int64)  # by request index

    @property
    def free(self) -> int:
        """Pages that nobody owns."""
        return len(self._free)

    # What the planner reports ------------------------------------------------------------------

    def released(self, request: Request, cached: int = 0) -> None:
        """A request gives up its blocks: finished or preempted.

        The first `cached` of them, `request.cached`, keep their pages as long as they are cached.
        """
        if request.index >= len(self._row) or (row := int(self._row[request.index])) < 0:
            return  # it was never part of a step
        # a block counted as full in a plan that was then given up holds nothing worth keeping
        kept = min(cached, int(self._written[row]) // self.page_size)
        for i in range(int(self._bound[row]), kept):
            cast(Entry, request.cached[i]).page = int(self.tables[row, i])
        self._free.extend(self.tables[row, kept : self.held[row]][::-1].tolist())
        self.held[row] = self._bound[row] = self._written[row] = 0
        self._row[request.index] = -1
        self._free_rows.append(row)

    def evicted(self, block: object) -> None:
        """A block that no request holds is thrown out of the prefix cache."""
        entry = cast(Entry, block)
        if entry.page >= 0:
            self._free.append(entry.page)
            entry.page = -1

    # What a step needs -------------------------------------------------------------------------

    def place(self, work: Work) -> None:
        """Pages for a prompt's tokens up to the end of `work`, prefix hits reused.

        Raises:
            RuntimeError: the planner counted wrong: no page left, or a hit on a block that was
                never computed.
        """
        row = self._admit(work.request)
        end = work.start + work.tokens
        for i in range(int(self._bound[row]), len(work.request.cached)):
            entry = cast(Entry, work.request.cached[i])
            own = int(self.tables[row, i])
            if i == self.held[row]:
                if entry.page < 0 and (i + 1) * self.page_size <= work.start:
                    raise RuntimeError(
                        f"request {work.request.index} counts on block {i} of its prompt, "
                        "which nobody has computed"
                    )
                if entry.page < 0:
                    entry.page = self._take()
                self.tables[row, i] = entry.page
                self.held[row] += 1
            elif entry.page < 0:
                entry.page = own  # begun by an earlier chunk
            elif entry.page != own:
                self.tables[row, i] = entry.page  # begun here, but the planner keeps another's
                self._free.append(own)
            self._bound[row] = i + 1
        while self.held[row] * self.page_size < end:
            self.tables[row, self.held[row]] = self._take()
            self.held[row] += 1
        self._written[row] = end

    def grow(self, rows: NDArray[np.int64], contexts: NDArray[np.int64]) -> None:
        """Pages for one more token of each decode: `contexts` are the tokens already there.

        Raises:
            RuntimeError: the planner counted wrong: no page left.
        """
        for row in rows[self.held[rows] * self.page_size <= contexts]:
            self.tables[row, self.held[row]] = self._take()
            self.held[row] += 1
        self._written[rows] = contexts + 1

    def rows(self, requests: NDArray[np.int64]) -> NDArray[np.int64]:
        """The table rows of running requests, by their index in the trace."""
        return self._row[requests]

    def _admit(self, request: Request) -> int:
        """The request's row, a new one if it has none."""
        if request.index >= len(self._row):
            more = np.full(max(request.index + 1, 2 * len(self._row)), -1, np.int64)
            more[: len(self._row)] = self._row
            self._row = more
        if self._row[request.index] < 0:
            if not self._free_rows:
                n = len(self.held)
                self.tables = np.concatenate((self.tables, np.zeros_like(self.tables)))
                zeros = np.zeros(n, np.int64)
                self.held = np.concatenate((self.held, zeros))
                self._bound = np.concatenate((self._bound, zeros))
                self._written = np.concatenate((self._written, zeros))
                self._free_rows.extend(range(2 * n - 1, n - 1, -1))
            self._row[request.index] = self._free_rows.pop()
        return int(self._row[request.index])

    def _take(self) -> int:
        """A free page."""
        if not self._free:
            raise RuntimeError("the plan needs more KV pages than it counted")
        return self._free.pop()
