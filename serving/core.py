"""The loop's core, without a clock: a request arrives, a step is planned, a step ends.

The drivers (SimPy, wall clock, recordings) are short loops over `add`, `plan` and `complete`. The
core keeps what must hold under every planner: who is refused, how long a request waited by choice,
and that what came in goes out. Who runs next is the planner's decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from serving.recorder import Recorder
from serving.request import Request, Status
from serving.step import Step, Wait


class Planner(Protocol):
    """A lifecycle: who goes on, who is taken, who is preempted and where they queue again."""

    wake: float | None
    """When the last plan wants to be asked again even if nothing arrives or ends (s)."""

    def refusal(self, request: Request) -> str | None:
        """Why it could never run, or None."""

    def add(self, request: Request) -> None:
        """It has arrived and waits."""

    def plan(self, now: float) -> Step | Wait:
        """The next step, counted as done from here on, or what to wait for."""

    def complete(self, step: Step) -> Sequence[Request]:
        """The oldest planned step has ended: free what it frees.

        Returns:
            The requests that it finished, in the order in which it held them.
        """

    def run_length(self, most: int) -> int:
        """How many steps equal to the last planned one can follow each other, itself included.

        Nothing but the passing of `wake`, an arrival or a last token may end such a run.
        """

    def advance(self, step: Step, steps: int) -> tuple[Step, Sequence[int]]:
        """Count the last planned step as `steps` equal decode steps.

        Returns:
            The last of them, and the KV blocks in use after each, shape [steps]; none where they
            stay as they are.
        """

    def waiting(self) -> int:
        """Requests that wait."""


class Core:
    """One engine: a planner, its limits, and the recorder of what it does."""

    def __init__(
        self,
        planner: Planner,
        recorder: Recorder,
        max_model_len: int | None = None,
        refuse: bool = True,
    ) -> None:
        """Begin empty.

        Args:
            planner: who runs next.
            recorder: where steps, events and refusals go.
            max_model_len: longest prompt + output, tokens; None: no limit.
            refuse: False lets requests in that can never run, as the engines do (`conform`).
        """
        self.planner = planner
        self.recorder = recorder
        self.max_model_len = max_model_len
        self._refuse = refuse
        self.in_flight = 0  # planned steps whose outcome is not known
        self.unfinished = 0
        self._waited = 0.0  # seconds in which the engine was free and the planner chose to wait
        self._waiting_since: float | None = None

    def add(self, request: Request) -> str | None:
        """A request has arrived.

        Returns:
            Why it is refused, or None when it is in.
        """
        if self._refuse:
            total, limit = request.prompt + request.output, self.max_model_len
            if limit is not None and total > limit:
                reason: str | None = (
                    f"prompt + output is {total} tokens, over max_model_len {limit}"
                )
            else:
                reason = self.planner.refusal(request)
            if reason is not None:
                request.status = Status.REFUSED
                self.recorder.refuse(request, reason)
                return reason
        if self._waiting_since is not None:
            self._count_wait(request.arrival)
        request.wait_mark = self._waited
        self.unfinished += 1
        self.planner.add(request)
        return None

    def _count_wait(self, now: float) -> None:
        if self._waiting_since is not None and now > self._waiting_since:
            self._waited += now - self._waiting_since
            self._waiting_since = now

    def plan(self, now: float) -> Step | Wait:
        """The next step, or what to wait for; `now` in seconds, never less than before."""
        if self._waiting_since is not None:
            self._count_wait(now)
            self._waiting_since = None
        planned = self.planner.plan(now)
        if isinstance(planned, Wait):
            if not self.in_flight and self.planner.waiting():
                self._waiting_since = now
            return planned
        self.in_flight += 1
        for request, _, _, _ in planned.prefill:
            mark = request.wait_mark
            if mark is not None:  # its first step
                self.recorder.waited(request, self._waited - mark)
                request.wait_mark = None
        return planned

    def run_length(self, most: int) -> int:
        """How many steps equal to the last planned one can follow each other, itself included."""
        return self.planner.run_length(most)

    def advance(self, step: Step, steps: int) -> tuple[Step, Sequence[int]]:
        """Count the last planned step as a run of `steps` (see `Planner.advance`)."""
        return self.planner.advance(step, steps)

    def complete(self, step: Step) -> Sequence[Request]:
        """The oldest planned step has ended; returns the requests that it finished."""
        self.in_flight -= 1
        finished = self.planner.complete(step)
        if finished:
            self.unfinished -= len(finished)
        return finished
