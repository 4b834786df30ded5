"""A request as the loop sees it: what it asks for, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class Status(IntEnum):
    """Where a request is in its life."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    REFUSED = 3


class Request:
    """One request. Facts never change; the state is written by the core and the planner.

    `computed` and `done` are exact for a request that its planner handles one by one; while it
    only decodes as a member of a group, the group knows them (`Decodes.context`).
    """

    __slots__ = (
        "admitted_wait",
        "arrival",
        "blocks",
        "cached",
        "computed",
        "done",
        "end_tick",
        "hashes",
        "in_flight",
        "index",
        "offset",
        "output",
        "priority",
        "promised",
        "prompt",
        "row",
        "seq",
        "stale",
        "status",
    )

    def __init__(
        self,
        index: int,
        arrival: float,
        prompt: int,
        output: int,
        priority: int = 0,
        hashes: Sequence[int] | None = None,
    ) -> None:
        # facts
        self.index = index  # row in the trace
        self.arrival = arrival  # seconds
        self.prompt = prompt  # tokens
        self.output = output  # tokens asked for
        self.priority = priority  # smaller first
        self.hashes = hashes  # one per KV block of the prompt, as `Blocks` wants them
        # state
        self.status = Status.WAITING
        self.computed = 0  # tokens whose KV is computed (or planned, two steps deep)
        self.done = 0  # output tokens known
        self.promised = 0  # sampled in a step whose outcome is not known yet ("placeholders")
        self.in_flight = 0  # scheduled tokens whose outcome is not known yet
        self.stale = 0  # the part of in_flight from before a preemption
        self.seq = -1  # order of admission
        self.row = -1  # row in a padded batch
        self.offset = 0  # in a group: computed = group tick + offset
        self.end_tick = -1  # in a group: the tick that samples the last token
        self.blocks = 0  # KV blocks held
        self.cached: list[object] = []  # with prefix caching: the held blocks that have a hash
        self.admitted_wait = 0.0  # the core's waiting clock when it arrived

    @property
    def known(self) -> int:
        """Prompt and outputs so far, tokens."""
        return self.prompt + self.done

    def __repr__(self) -> str:
        return (
            f"Request({self.index}, prompt={self.prompt}, output={self.output}, "
            f"computed={self.computed}, done={self.done}, {self.status.name.lower()})"
        )
