"""SGLang's running batch: its order, who ended but still counts, and what it will still need."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from policies.sglang.limits import CLIP_MAX_NEW_TOKENS
from policies.sglang.simulation import Calendar, DecodesAhead
from serving.group import DecodeGroup
from serving.request import Request


class OutputsAhead:
    """Σ min(outputs still to come, 4096) over decodes that go on together, O(1) a step.

    A decode with its last token at tick e has e + 1 - tick to come, so the sum over those below
    the clip is Σ(e + 1) less their number times the tick; a heap says when a clipped one joins
    them.
    """

    def __init__(self) -> None:
        self._ends = 0  # Σ(e + 1) of those below the clip
        self._below = 0
        self._clipped: dict[Request, int] = {}  # by the tick from which they are below it
        self._due: list[tuple[int, int, Request]] = []  # heap of them; some may have left

    def join(self, request: Request, tick: int) -> None:
        """A member of the group from `tick` on."""
        since = request.end_tick + 1 - CLIP_MAX_NEW_TOKENS
        if since <= tick:
            self._ends += request.end_tick + 1
            self._below += 1
        else:
            self._clipped[request] = since
            heapq.heappush(self._due, (since, request.index, request))

    def leave(self, request: Request, end_tick: int) -> None:
        """Ended, or taken out; `end_tick` is what it had as a member."""
        if self._clipped.pop(request, None) is None:
            self._ends -= end_tick + 1
            self._below -= 1

    def total(self, tick: int) -> int:
        """The sum before the step of `tick`."""
        while self._due and self._due[0][0] <= tick:
            since, _, request = heapq.heappop(self._due)
            if self._clipped.get(request) == since:
                del self._clipped[request]
                self._ends += since + CLIP_MAX_NEW_TOKENS
                self._below += 1
        return self._ends - self._below * tick + CLIP_MAX_NEW_TOKENS * len(self._clipped)


class RunningBatch:
    """Requests that decode. Who ended with the last step counts until `drop_ended`."""

    def __init__(self, page_size: int, simulated: bool = False) -> None:
        """Begin empty.

        Args:
            page_size: tokens of a KV page.
            simulated: admission simulates the decodes ahead.
        """
        self.group = DecodeGroup(page_size)
        self._calendar = Calendar() if simulated else None
        self._live: dict[Request, None] = {}
        self._ended: Sequence[Request] = ()
        self._ahead = OutputsAhead()
        self._first = 0  # `seq` of requests in the batch's order: from here
        self._last = 0  # to here

    def __len__(self) -> int:
        return len(self._live) + len(self._ended)

    @property
    def live(self) -> int:
        """Requests that go on."""
        return len(self._live)

    def append(self, requests: Sequence[Request]) -> None:
        """They decode from now on, after all others."""
        for request in requests:
            self._join(request, self._last)
            self._last += 1
            if self._calendar is not None:
                self._calendar.join(request, first=False)

    def prepend(self, requests: Sequence[Request]) -> None:
        """They decode from now on, before all others."""
        self._first -= len(requests)
        for place, request in enumerate(requests, self._first):
            self._join(request, place)
        if self._calendar is not None:
            for request in reversed(requests):
                self._calendar.join(request, first=True)

    def _join(self, request: Request, place: int) -> None:
        request.seq = place
        self._live[request] = None
        self.group.join(request)
        self._ahead.join(request, self.group.tick)

    def drop_ended(self) -> bool:
        """Forget who ended; whether anybody had."""
        ended, self._ended = self._ended, ()
        return bool(ended)

    def leave(self, request: Request) -> None:
        """It is taken out; its computed and sampled tokens are its own again."""
        del self._live[request]
        self._ahead.leave(request, request.end_tick)
        if self._calendar is not None:
            self._calendar.leave(request.end_tick, request.offset)
        self.group.leave(request)

    def advance(self, steps: int = 1) -> Sequence[Request]:
        """Everybody takes `steps` tokens; returns who has all of theirs now, in order."""
        ended = self.group.advance(steps)
        if not ended:
            return ()
        for request in ended:
            del self._live[request]
            self._ahead.leave(request, self.group.tick - 1)
        if self._calendar is not None:
            self._calendar.ended(len(ended))
        self._ended = sorted(ended, key=_place) if len(ended) > 1 else ended
        return self._ended

    def in_order(self) -> list[Request]:
        """Those that go on, in the batch's order, O(n log n)."""
        return sorted(self._live, key=_place)

    def reorder(self, requests: Sequence[Request]) -> None:
        """All that go on, in a new order."""
        for place, request in enumerate(requests):
            request.seq = place
        self._first, self._last = 0, len(self._live)
        if self._calendar is not None:
            self._calendar.reorder(requests)

    def outputs(self, request: Request) -> int:
        """Output tokens so far of one that goes on."""
        return request.output - self.outputs_ahead(request)

    def outputs_ahead(self, request: Request) -> int:
        """Output tokens still to come of one that goes on."""
        return request.end_tick + 1 - self.group.tick

    def decodes_ahead(self) -> DecodesAhead:
        """What each that goes on has to come and holds, where admission simulates that."""
        assert self._calendar is not None
        return DecodesAhead(self._calendar, self.group.tick)

    def total_ahead(self) -> int:
        """Σ min(outputs still to come, 4096)."""
        return self._ahead.total(self.group.tick)


def _place(request: Request) -> int:
    return request.seq
