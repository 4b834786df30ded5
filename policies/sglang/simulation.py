"""The simulated admission: whether memory lasts if all decode on and each gives its tokens back."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from serving.request import Request

IntArray = NDArray[np.int64]


class Calendar:
    """Decodes by the tick of their last token, equals in the batch's order.

    Kept as they come and go, so that a pass of admission has them at hand without looking at each.
    """

    def __init__(self) -> None:
        self._ends = array("q")
        self._offsets = array("q")  # tokens computed less the tick
        self._sum = 0  # of the ends

    def join(self, request: Request, first: bool) -> None:
        """A member of the group from now on, at the batch's head or at its end."""
        end = request.end_tick
        place = bisect_left(self._ends, end) if first else bisect_right(self._ends, end)
        self._ends.insert(place, end)
        self._offsets.insert(place, request.offset)
        self._sum += end

    def leave(self, end: int, offset: int) -> None:
        """A member is taken out; `end` and `offset` are what it had."""
        place = bisect_left(self._ends, end)
        while self._offsets[place] != offset:  # equals of both are alike
            place += 1
        del self._ends[place], self._offsets[place]
        self._sum -= end

    def ended(self, count: int) -> None:
        """The first `count` have their last token."""
        self._sum -= count * self._ends[0]
        del self._ends[:count], self._offsets[:count]

    def reorder(self, requests: Iterable[Request]) -> None:
        """All members, in a new order."""
        self._ends, self._offsets, self._sum = array("q"), array("q"), 0
        for request in requests:
            self.join(request, first=False)

    def demand(self, tick: int) -> int:
        """Σ (outputs to come + 1) before the step of `tick`."""
        return self._sum - len(self._ends) * (tick - 2)

    def table(self, tick: int) -> IntArray:
        """Outputs to come and tokens held before the step of `tick`, shape [2, requests]."""
        table = np.array((self._ends, self._offsets))
        table[0] += 1 - tick
        table[1] += tick + 1
        return table


class DecodesAhead:
    """The decodes ahead of one pass of admission: those that run, and those that want to.

    Most passes have memory to spare, and then a sum tells; the table is made where it does not.
    """

    def __init__(self, calendar: Calendar, tick: int) -> None:
        self._calendar = calendar
        self._tick = tick
        self._demand = calendar.demand(tick)
        self._table: IntArray | None = None
        self._coming: list[tuple[Callable[[IntArray, int], int], int, int]] = []

    def join(self, left: int, held: int, place: Callable[[IntArray, int], int]) -> None:
        """One more.

        Args:
            left: its outputs to come, 1 or more.
            held: its tokens by now.
            place: `before`, `behind` or `as_sglang` does it: where it stands among the others.
        """
        # out of place, it is as if it were there twice
        self._demand += (left + 1) * (2 if place is as_sglang else 1)
        self._coming.append((place, left, held))

    def last(self, free: int) -> bool:
        """Whether `free` tokens are enough until each has ended, in that order.

        When one ends, it and all behind it have each taken as many tokens as it had to come, and
        those ahead of it have given back what they held. A token for each is kept back.
        """
        if free > self._demand:  # even if nobody gave anything back
            return True
        left, held = self._made()
        given_back = held.cumsum() - held
        rows = np.arange(len(left), 0, -1)
        return bool((free + given_back > (left + 1) * rows).all())

    def _made(self) -> IntArray:
        table = self._calendar.table(self._tick) if self._table is None else self._table
        for place, left, held in self._coming:
            table = _inserted(table, place(table[0], left), left, held)
        self._coming.clear()
        self._table = table
        return table


def before(lefts: IntArray, left: int) -> int:
    """In its place, before its equals."""
    return int(lefts.searchsorted(left, "left"))


def behind(lefts: IntArray, left: int) -> int:
    """In its place, behind its equals."""
    return int(lefts.searchsorted(left, "right"))


def as_sglang(lefts: IntArray, left: int) -> int:
    """Before the first that has as much to come; SGLang never goes behind the last."""
    if not len(lefts):
        return 0
    more = lefts >= left
    first = int(more.argmax())
    return first if more[first] else len(lefts) - 1


def _inserted(table: IntArray, place: int, left: int, held: int) -> IntArray:
    new = np.empty((2, table.shape[1] + 1), np.int64)  # np.insert costs ten times as much
    new[:, :place] = table[:, :place]
    new[:, place] = left, held
    new[:, place + 1 :] = table[:, place:]
    return new
