"""Waiting queues: first come first served, ranked by a key, or split into length buckets."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from mypy_extensions import mypyc_attr

from serving.request import Request, Status

Key = Callable[[Request], int]


class Queue(Protocol):
    """Requests that wait, in the order in which they should be taken. All verbs O(log n)."""

    def push(self, request: Request) -> None:
        """A request has arrived."""

    def push_front(self, request: Request) -> None:
        """A preempted request comes back, ahead of all others where the order allows it."""

    def peek(self) -> Request | None:
        """The next one, or None when nobody waits."""

    def pop(self) -> Request:
        """Take the next one."""

    def remove(self, request: Request) -> None:
        """Take out one that is somewhere in the queue (rare; may cost O(n))."""

    def __len__(self) -> int: ...


@mypyc_attr(native_class=False)
class Fifo(deque[Request]):
    """First come, first served; preempted requests come first of all."""

    push = deque.append
    push_front = deque.appendleft
    pop = deque.popleft

    def peek(self) -> Request | None:
        """The one that has waited longest."""
        return self[0] if self else None


class Ranked:
    """Smallest key first, for example by priority; among equal keys who arrived first.

    A lane a key, in order of arrival, and a heap of the keys. There are few of them, so taking one
    of half a million requests looks at a handful, where a heap of requests looks at dozens.
    """

    def __init__(self, key: Key) -> None:
        self._key = key
        self._lanes: dict[int, deque[Request]] = {}
        self._keys: list[int] = []  # heap; the first one's lane is not empty
        self._count = 0

    def push(self, request: Request) -> None:
        """Put it in its place, behind those of its lane that came before it."""
        key = self._key(request)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = deque()
            heapq.heappush(self._keys, key)
        if not lane or _came(lane[-1]) <= _came(request):
            lane.append(request)
        else:
            mine = _came(request)
            lane.insert(next(i for i, other in enumerate(lane) if mine < _came(other)), request)
        self._count += 1

    def push_front(self, request: Request) -> None:
        """Put it back in its place, which is near the front of its lane."""
        self.push(request)

    def peek(self) -> Request | None:
        """The one of smallest key."""
        return self._lanes[self._keys[0]][0] if self._keys else None

    def pop(self) -> Request:
        """Take the one of smallest key."""
        request = self._lanes[self._keys[0]].popleft()
        self._taken()
        return request

    def remove(self, request: Request) -> None:
        """Take one out, O(n)."""
        self._lanes[self._key(request)].remove(request)
        self._taken()

    def _taken(self) -> None:
        self._count -= 1
        while self._keys and not self._lanes[self._keys[0]]:
            del self._lanes[heapq.heappop(self._keys)]

    def __len__(self) -> int:
        return self._count


def _came(request: Request) -> tuple[float, int]:
    return request.arrival, request.index


class Buckets:
    """A queue a length bucket: prompts up to the first bound, up to the second, …, and beyond."""

    def __init__(self, bounds: Sequence[int], make: Callable[[], Queue]) -> None:
        self.bounds = tuple(bounds)
        self.buckets = [make() for _ in range(len(self.bounds) + 1)]
        self._arrived = Ranked(_alike)  # by arrival; may hold some that wait no more
        self._count = 0

    def bucket(self, request: Request) -> Queue:
        """The bucket that a request's prompt belongs to."""
        return self.buckets[bisect_left(self.bounds, request.prompt)]

    def oldest(self) -> Request | None:
        """The one that has waited longest, whatever its bucket."""
        arrived = self._arrived
        while (first := arrived.peek()) is not None and first.status is not Status.WAITING:
            arrived.pop()
        return first

    def push(self, request: Request) -> None:
        """Put it into its bucket."""
        self.bucket(request).push(request)
        self._arrived.push(request)
        self._count += 1

    def push_front(self, request: Request) -> None:
        """Put it first into its bucket."""
        self.bucket(request).push_front(request)
        self._arrived.push(request)
        self._count += 1

    def peek(self) -> Request | None:
        """The next one of the bucket whose turn it is by age."""
        oldest = self.oldest()
        return None if oldest is None else self.bucket(oldest).peek()

    def pop(self) -> Request:
        """Take the one that `peek` shows."""
        request = self.peek()
        if request is None:
            raise IndexError("pop from an empty queue")
        return self.pop_from(self.bucket(request))

    def pop_from(self, bucket: Queue) -> Request:
        """Take the next one of this bucket."""
        self._count -= 1
        return bucket.pop()

    def remove(self, request: Request) -> None:
        """Take one out, O(n)."""
        self.bucket(request).remove(request)
        self._count -= 1

    def __len__(self) -> int:
        return self._count


def _alike(request: Request) -> int:
    return 0


def _priority(request: Request) -> int:
    return request.priority


def _prompt(request: Request) -> int:
    return request.prompt


def by_priority() -> Queue:
    """The least number first."""
    return Ranked(_priority)


def shortest_first() -> Queue:
    """The shortest prompt first."""
    return Ranked(_prompt)


ORDERS: dict[str, Callable[[], Queue]] = {
    "fcfs": Fifo,
    "priority": by_priority,
    "shortest": shortest_first,
}
"""Orders of the waiting queue by the name that `--order` takes."""
