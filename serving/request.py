"""A request as the loop sees it: what it asks for, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any


class Status(IntEnum):
    """Where a request is in its life."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    REFUSED = 3


class Request:
    """One request. Facts never change; the state is the planner's.

    All state is as planned: a step counts from the moment it is planned, also while it runs.
    `computed` and `sampled` are exact for a request that is handled one by one; for a member of a
    `DecodeGroup` the group knows them.
    """

    __slots__ = (
        "arrival",
        "cached",
        "cached_ends",
        "computed",
        "end_tick",
        "hashes",
        "identified",
        "index",
        "offset",
        "output",
        "priority",
        "prompt",
        "row",
        "sampled",
        "seq",
        "since",
        "status",
        "target",
        "wait_mark",
    )

    def __init__(
        self,
        index: int,
        arrival: float,
        prompt: int,
        output: int,
        priority: int = 0,
        hashes: Sequence[int] = (),
    ) -> None:
        # facts
        self.index = index  # row in the trace
        self.arrival = arrival  # seconds
        self.prompt = prompt  # tokens
        self.output = output  # tokens asked for
        self.priority = priority  # smaller first
        self.hashes = hashes  # of the prompt's blocks, chained, as the prefix cache counts them
        # state
        self.status = Status.WAITING
        self.computed = 0  # tokens whose KV is computed
        self.sampled = 0  # output tokens
        self.target = prompt  # tokens that its prefill computes: prompt + outputs when resumed
        self.seq = -1  # order of admission
        self.row = -1  # row of a padded batch
        self.offset = 0  # in a group: computed = group tick + offset
        self.since = -1  # in a group: the tick at which it joined
        self.end_tick = -1  # in a group: the tick that samples its last token
        # with prefix caching: its runs of blocks that have a hash, where each ended when it was
        # taken, and how many blocks they are; lists once it has entered, since most wait for long
        self.cached: Sequence[Any] = ()
        self.cached_ends: Sequence[int] = ()
        self.identified = 0
        # reading of the core's grouping-wait clock at its arrival; None once it was scheduled
        self.wait_mark: float | None = 0.0

    @property
    def known(self) -> int:
        """Prompt and outputs so far, tokens."""
        return self.prompt + self.sampled

    def __repr__(self) -> str:
        return (
            f"Request({self.index}, prompt={self.prompt}, output={self.output}, "
            f"computed={self.computed}, sampled={self.sampled}, {self.status.name.lower()})"
        )
