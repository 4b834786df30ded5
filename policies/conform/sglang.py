"""Drives this project's planner through the requests of an SGLang recording."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from policies.conform.recording import SglangConfig, SglangRecording
from policies.sglang import Sglang, SglangLimits
from serving.core import Core
from serving.recorder import ADMIT, Recorder
from serving.request import Request
from serving.step import Step, Wait


class OneTurn(Sglang):
    """Shows every turn of the event loop, those that form no batch included."""

    def plan(self, now: float) -> Step | Wait:
        """One turn."""
        return self.turn() or Wait()


def requests_of(recording: SglangRecording) -> list[Request]:
    """The requests, in order of arrival; a shared prefix has one hash, repeated for each token."""
    made = []
    for r in sorted(recording.requests, key=lambda r: (r.arrival_step, r.idx)):
        hashes = (r.prefix_id or 0,) * r.shared
        made.append(Request(r.idx, r.arrival_step, r.prompt_len, r.output_len, hashes=hashes))
    return made


def build(config: SglangConfig, refuse: bool = False) -> tuple[Core, Observer]:
    """The policy that an SGLang recording is held against, and who says what it did.

    Args:
        config: the recording's settings.
        refuse: refuse at arrival what SGLang would abort or cut.
    """
    recorder = Recorder()
    limits = SglangLimits(**config.model_dump(include=set(SglangLimits.__dataclass_fields__)))
    planner = OneTurn(limits, recorder)
    return Core(planner, recorder, refuse=refuse), Observer(planner, recorder)


class Observer:
    """Says of a turn what a recording says, taken after its plan and before its outcome."""

    def __init__(self, planner: Sglang, recorder: Recorder) -> None:
        self._planner = planner
        self._events = recorder.events
        self._seen = 0

    def __call__(self, step: Step | None, number: int) -> dict[str, Any]:
        """One line of a recording, `finished` still to come."""
        planner = self._planner
        works, decodes = ((), ()) if step is None else (step.prefill, step.decodes.members())
        running = sorted((request for request, _ in decodes), key=lambda r: r.seq)
        seen: dict[str, Any] = {
            "step": number,
            "kind": ("mixed" if decodes else "prefill")
            if works
            else "decode"
            if decodes
            else "idle",
            "scheduled": {
                **{work.request.index: work.tokens for work in works},
                **{request.index: 1 for request in running},
            },
            "retracted": [] if step is None else [r.index for r in step.preempted],
            "available": planner.memory.available,
            "running": planner.running.live if step is None else step.running,
            "waiting": planner.waiting(),
            "ratio": round(planner.ratio.current, 6),
            "finished": [],
        }
        if planner.memory.radix is not None:
            seen["evictable"] = planner.memory.evictable
        if planner.chunked is not None:
            seen["chunked"] = planner.chunked.index
        if hits := self._hits():
            seen["cache_hit"] = hits
        return seen

    def _hits(self) -> dict[int, int]:
        new = self._events[self._seen :]
        self._seen = len(self._events)
        lines = zip(new[1::5], new[2::5], new[3::5], strict=True)
        return {r: tokens for r, kind, tokens in lines if kind == ADMIT and tokens}


def replay(recording: SglangRecording) -> Iterator[dict[str, Any]]:
    """What this project decides on a recording's requests, turn by turn, without end."""
    core, observe = build(recording.config)
    return drive(recording, core, observe)


def drive(recording: SglangRecording, core: Core, observe: Observer) -> Iterator[dict[str, Any]]:
    """Lead `core` through a recording's requests; each line is complete when it comes."""
    arrivals = deque(requests_of(recording))
    number = 0
    while True:
        while arrivals and arrivals[0].arrival <= number:
            core.add(arrivals.popleft())
        planned = core.plan(number)
        step = None if isinstance(planned, Wait) else planned
        seen = observe(step, number)
        if step is not None:
            seen["finished"] = [r.index for r in core.complete(step)]
        yield seen
        number += 1
