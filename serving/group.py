"""Decodes that simply go on, advanced as one: a count, a sum, and a calendar of those that end."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from serving.request import Request

FAR: Final = 1 << 62
"""A tick that is never reached."""


class DecodeGroup:
    """Running requests that want one token each; a step costs O(1), joining and leaving O(log n).

    The group counts its steps in ticks. A member's computed tokens are tick + offset, so advancing
    all of them is advancing the tick. Members are sorted by the tick modulo the block size at which
    they next open a KV block, and entered in a calendar under the tick that samples their last
    token: they leave the group by themselves then.

    Who is longest stays so until it leaves. The front has those who are or may come to be: the
    later they end, the shorter they are; everybody else is no longer than one who ends no earlier.
    """

    def __init__(self, block_size: int) -> None:
        self.tick = 0
        self.live = 0
        self.context = 0  # sum of the members' computed tokens
        self._size = block_size
        self._opening = [0] * block_size  # members that open a block at tick ≡ i
        self._ends: dict[int, dict[Request, None]] = {}
        self._end_ticks: list[int] = []  # heap; may hold ticks whose members have left
        self.longest = -FAR  # offset of the longest member, see `longest_keys`
        self._front_ends: list[int] = [FAR]  # ticks that sample the last tokens of the front
        self._front: list[int] = [-FAR]  # its offsets, falling; the last stands for nobody
        self._torn = False  # somebody of the front has left early
        self._members: dict[Request, None] = {}
        self._ended: Sequence[Request] = ()  # left with the last step

    def __contains__(self, request: Request) -> bool:
        return request.end_tick >= 0

    def computed(self, request: Request) -> int:
        """A member's computed tokens."""
        return self.tick + request.offset

    def newcomer(self, request: Request) -> bool:
        """Whether a member has joined since the last step."""
        return request.since == self.tick

    def members(self) -> Sequence[tuple[Request, int]]:
        """Who took part in the last step, with the tokens computed before it, O(members)."""
        tick = self.tick
        took_part = [r for r in self._members if r.since < tick]
        return [(r, tick - 1 + r.offset) for r in (*took_part, *self._ended)]

    def opening(self) -> int:
        """KV blocks that the next step opens."""
        return self._opening[self.tick % self._size]

    def opens(self, request: Request) -> bool:
        """Whether a member opens a KV block in the next step."""
        return (self.tick + request.offset) % self._size == 0

    def join(self, request: Request) -> None:
        """Its prompt is done and at least one more token is wanted."""
        tick, computed = self.tick, request.computed
        request.since = tick
        request.offset = offset = computed - tick
        end = tick + request.output - request.sampled - 1
        request.end_tick = end
        ending = self._ends.get(end)
        if ending is None:
            ending = self._ends[end] = {}
            heapq.heappush(self._end_ticks, end)
        ending[request] = None
        self._members[request] = None
        self.live += 1
        self.context += computed
        self._opening[-offset % self._size] += 1
        place = bisect_left(self._front_ends, end)
        if self._front[place] < offset:
            self._lead(place, end, offset)

    def leave(self, request: Request) -> None:
        """Before its time: preempted, or passed over in this step. Its state becomes its own."""
        end = request.end_tick
        ending = self._ends[end]
        del ending[request]
        if not ending:
            del self._ends[end]
        self._torn |= self._front[bisect_left(self._front_ends, end)] == request.offset
        self._forget(request)

    def _forget(self, request: Request) -> None:
        computed = self.tick + request.offset
        request.computed = computed
        request.sampled = request.output - (request.end_tick - self.tick + 1)
        request.end_tick = -1
        del self._members[request]
        self.live -= 1
        self.context -= computed
        self._opening[-request.offset % self._size] -= 1

    def advance(self, steps: int = 1) -> Sequence[Request]:
        """All members take `steps` tokens; those that thereby have all of theirs leave.

        Nobody may end before the last of these steps (see `until_end`).
        """
        self.context += self.live * steps
        tick = self.tick = self.tick + steps
        ending = self._ends.pop(tick - 1, None)
        if ending is None:
            self._ended = ()
            return ()
        if self._front_ends[0] < tick:
            del self._front_ends[0], self._front[0]
            self.longest = self._front[0]
        for request in ending:
            self._forget(request)
        self._ended = ended = list(ending)
        return ended

    def _lead(self, place: int, end: int, offset: int) -> None:
        """Enter the front before `place`, the first that ends no earlier; O(front)."""
        first, behind = place, place + (self._front_ends[place] == end)
        while first and self._front[first - 1] <= offset:
            first -= 1
        self._front_ends[first:behind] = [end]
        self._front[first:behind] = [offset]
        self.longest = self._front[0]

    def longest_keys(self) -> int:
        """Keys that the longest member reads in the next step; 0 without members.

        While nobody leaves early it is tick + `longest` + 1; after that, O(n log n) once.
        """
        if self._torn:
            self._torn = False
            self._front_ends, self._front = [FAR], [-FAR]
            for request in sorted(self._members, key=attrgetter("end_tick"), reverse=True):
                if self._front[0] < request.offset:
                    self._lead(0, request.end_tick, request.offset)
            self.longest = self._front[0]
        return self.tick + self.longest + 1 if self.live else 0

    def until_end(self) -> int:
        """Steps from now on until somebody samples a last token, that step included; 0: nobody."""
        heap = self._end_ticks
        while heap and (heap[0] < self.tick or heap[0] not in self._ends):
            heapq.heappop(heap)
        return heap[0] - self.tick + 1 if heap else 0

    def opening_run(self, steps: int) -> list[int]:
        """KV blocks opened in each of the next `steps` steps if the members stay the same."""
        at = self.tick % self._size
        cycle = self._opening[at:] + self._opening[:at]
        return (cycle * (steps // self._size + 1))[:steps]

    def steps_within(self, free: int, most: int) -> int:
        """How many of the next `most` steps `free` KV blocks are enough for."""
        if self.live and self._size * free >= self.live * (most + self._size):
            return most  # cheap: even spread evenly there is more than enough
        per_cycle = self.live
        cycles = min(free // per_cycle, most // self._size) if per_cycle else 0
        free -= cycles * per_cycle
        steps = cycles * self._size
        while steps < most:
            free -= self._opening[(self.tick + steps) % self._size]
            if free < 0:
                break
            steps += 1
        return steps
