"""Waiting queues: first come first served, ranked by a key, or split into length buckets."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from serving.request import Request, Status

Rank = Callable[[Request], tuple[float, ...]]


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


class Fifo(deque[Request]):
    """First come, first served; preempted requests come first of all."""

    push = deque.append
    push_front = deque.appendleft
    pop = deque.popleft

    def peek(self) -> Request | None:
        """The one that has waited longest."""
        return self[0] if self else None


class Ranked:
    """Smallest rank first, for example by priority; a preempted request goes back to its place."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._heap: list[tuple[tuple[float, ...], int, Request]] = []

    def push(self, request: Request) -> None:
        """Put it in its place; equal ranks go by index."""
        heapq.heappush(self._heap, (self._rank(request), request.index, request))

    push_front = push

    def peek(self) -> Request | None:
        """The one of smallest rank."""
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Request:
        """Take the one of smallest rank."""
        return heapq.heappop(self._heap)[2]

    def remove(self, request: Request) -> None:
        """Take one out, O(n)."""
        self._heap = [item for item in self._heap if item[2] is not request]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)


class Buckets:
    """A queue a length bucket: prompts up to the first bound, up to the second, …, and beyond."""

    def __init__(self, bounds: Sequence[int], make: Callable[[], Queue]) -> None:
        self.bounds = tuple(bounds)
        self.buckets = [make() for _ in range(len(self.bounds) + 1)]
        self._arrived = Ranked(lambda r: (r.arrival,))  # may hold some that wait no more
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


ORDERS: dict[str, Callable[[], Queue]] = {
    "fcfs": Fifo,
    "priority": lambda: Ranked(lambda r: (r.priority, r.arrival)),
    "shortest": lambda: Ranked(lambda r: (r.prompt, r.arrival)),
}
"""Orders of the waiting queue by the name that `--order` takes."""
