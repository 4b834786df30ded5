"""Groupings: form the next batch from the queue, or wait. This is what users write most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from serving.queue import Buckets, Queue
from serving.request import Request
from serving.step import Wait


class Room(Protocol):
    """What is left in the step that is being formed; it answers "may this request join?"."""

    @property
    def seats(self) -> int:
        """Requests that may still join, as far as seats go."""

    @property
    def taken(self) -> int:
        """Requests that have joined."""

    def fits(self, request: Request) -> bool:
        """Whether there is a seat, token budget and memory for it too."""

    def slots(self, request: Request) -> int:
        """Prompt slots that the step would compute, padding included, if it joined too."""

    def take(self, request: Request) -> None:
        """It joins; it must have left the queue."""


class Grouping(Protocol):
    """Which waiting requests go together, how many, and how long they may wait for company."""

    def form(self, queue: Queue, room: Room, now: float) -> Wait | None:
        """Move requests from `queue` into `room`.

        Returns:
            None, or a `Wait` where requests are held back by choice: until more arrive, or until
            its time has come. What a step holds may depend on the queue, on `room` and on that
            time, and on nothing else.
        """


class Fcfs:
    """In the queue's order, as many as there is room for; the first that does not fit ends it."""

    def form(self, queue: Queue, room: Room, now: float) -> Wait | None:
        """Take from the head of the queue while it fits."""
        while (request := queue.peek()) is not None and room.fits(request):
            queue.pop()
            room.take(request)
        return None


class TokenBudget:
    """In the queue's order, up to a budget of computed slots; one over-long prompt goes alone."""

    def __init__(self, max_num_batched_tokens: int) -> None:
        self.budget = max_num_batched_tokens

    def form(self, queue: Queue, room: Room, now: float) -> Wait | None:
        """Take from the head of the queue while the step's slots stay within the budget."""
        while (request := queue.peek()) is not None and room.fits(request):
            if room.taken and room.slots(request) > self.budget:
                break
            queue.pop()
            room.take(request)
        return None


class Bucketing:
    """Prompts of similar length together.

    A bucket that fills every seat goes at once. Otherwise the request that has waited longest sets
    the pace: when it has waited `max_wait`, its bucket goes with whatever it holds. So nobody is
    held back for longer than `max_wait` while the engine is free, however lonely its bucket.
    """

    def __init__(self, bounds: Sequence[int], max_wait: float) -> None:
        self.bounds = tuple(bounds)
        self.max_wait = max_wait  # seconds

    def form(self, queue: Queue, room: Room, now: float) -> Wait | None:
        """Take one bucket's requests, the due one's first, then a full one's."""
        if not isinstance(queue, Buckets):
            raise TypeError("Bucketing needs its requests in Buckets")
        oldest = queue.oldest()
        if oldest is None or not room.seats:
            return None
        due = oldest.arrival + self.max_wait
        if now >= due:
            ready = [queue.bucket(oldest)]
        else:
            ready = [bucket for bucket in queue.buckets if len(bucket) >= room.seats]
        for bucket in ready[:1]:
            while (request := bucket.peek()) is not None and room.fits(request):
                room.take(queue.pop_from(bucket))
        return None if now >= due else Wait(until=due)
