"""Drives this project's planner through the requests of a vLLM recording."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from policies.admission import Limits
from policies.conform.recording import VllmConfig, VllmRecording
from policies.continuous import Continuous
from serving.blocks import Blocks
from serving.core import Core
from serving.prefix import PrefixBlocks
from serving.queue import ORDERS
from serving.recorder import ADMIT, Recorder
from serving.request import Request
from serving.step import Step, Wait


def requests_of(recording: VllmRecording) -> list[Request]:
    """The requests, in order of arrival, with block hashes where a prefix is shared."""
    config, made = recording.config, []
    for r in sorted(recording.requests, key=lambda r: (r.arrival_step, r.idx)):
        hashes: list[int] = []
        if config.enable_prefix_caching:
            for i in range(r.prompt_len // config.block_size):
                common = (i + 1) * config.block_size <= r.shared
                owner = 2 * (r.prefix_id or 0) if common else 2 * r.idx + 1
                hashes.append(owner << 32 | i)
        output = min(r.output_len, config.max_model_len - r.prompt_len)
        arrival = r.arrival_step + r.idx * 1e-6  # ties in priority go by step, then index
        made.append(Request(r.idx, arrival, r.prompt_len, output, r.priority, hashes))
    return made


def build(config: VllmConfig, refuse: bool = False) -> tuple[Core, Observer]:
    """The policy that a vLLM recording is held against, and who says what it did.

    Args:
        config: the recording's settings.
        refuse: refuse at arrival what could never run; vLLM lets it in and gets stuck.
    """
    make = PrefixBlocks if config.enable_prefix_caching else Blocks
    recorder = Recorder()
    planner = Continuous(
        Limits(
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            chunked_prefill=config.enable_chunked_prefill,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
            watermark=config.watermark,
            reserve_full_isl=config.scheduler_reserve_full_isl,
            priority=config.policy == "priority",
            asynchronous=config.async_scheduling,
        ),
        make(config.num_gpu_blocks - 1, config.block_size),  # one is vLLM's null block
        ORDERS[config.policy](),
        recorder,
    )
    core = Core(planner, recorder, config.max_model_len, refuse=refuse)
    return core, Observer(planner, recorder)


class Observer:
    """Says of a step what a recording says, taken after its plan and before its outcome."""

    def __init__(self, planner: Continuous, recorder: Recorder) -> None:
        self._planner = planner
        self._events = recorder.events
        self._seen = 0

    def __call__(self, step: Step | None, number: int) -> dict[str, Any]:
        """One line of a recording, `finished` still to come."""
        planner = self._planner
        tokens: dict[Request, int] = {}
        if step is not None:
            tokens = {work.request: work.tokens for work in step.prefill}
            tokens.update({request: 1 for request, _ in step.decodes.members()})
        seen: dict[str, Any] = {
            "step": number,
            "scheduled": {r.index: tokens[r] for r in planner.running if r in tokens},
            "preempted": [] if step is None else [r.index for r in step.preempted],
            "free_blocks": planner.blocks.free,
            "running": len(planner.running),
            "waiting": planner.waiting(),
            "finished": [],
        }
        if hits := self._hits():
            seen["cache_hit"] = hits
        return seen

    def _hits(self) -> dict[int, int]:
        new = self._events[self._seen :]
        self._seen = len(self._events)
        lines = zip(new[1::5], new[2::5], new[3::5], strict=True)
        return {r: tokens for r, kind, tokens in lines if kind == ADMIT and tokens}


def replay(recording: VllmRecording) -> Iterator[dict[str, Any]]:
    """What this project decides on a recording's requests, step by step, without end."""
    core, observe = build(recording.config)
    return drive(recording, core, observe)


def drive(recording: VllmRecording, core: Core, observe: Observer) -> Iterator[dict[str, Any]]:
    """Lead `core` through a recording's requests; each line is complete when it comes."""
    arrivals = deque(requests_of(recording))
    asynchronous = recording.config.async_scheduling
    return (_asynchronous if asynchronous else _synchronous)(core, observe, arrivals)


def _synchronous(
    core: Core, observe: Observer, arrivals: deque[Request]
) -> Iterator[dict[str, Any]]:
    number = 0
    while True:
        while arrivals and int(arrivals[0].arrival) <= number:
            core.add(arrivals.popleft())
        planned = core.plan(number)
        step = None if isinstance(planned, Wait) else planned
        seen = observe(step, number)
        if step is not None:
            seen["finished"] = [r.index for r in core.complete(step)]
        yield seen
        number += 1


def _asynchronous(
    core: Core, observe: Observer, arrivals: deque[Request]
) -> Iterator[dict[str, Any]]:
    """Two steps in flight: plan(k + 1) precedes the outcome of k; a record is whole only then."""
    number = 0
    flight: deque[tuple[Step, dict[str, Any]]] = deque()
    made: deque[dict[str, Any]] = deque()  # records not handed out yet
    while True:
        while arrivals and int(arrivals[0].arrival) <= number:
            core.add(arrivals.popleft())
        planned = core.plan(number)
        if not isinstance(planned, Wait):
            seen = observe(planned, number)
            seen["processed"] = []
            flight.append((planned, seen))
            made.append(seen)
            number += 1
            if len(flight) < 2 and (planned.prefill or planned.features.decode_rows):
                continue
        elif not flight:
            yield from made
            made.clear()
            if not arrivals:
                return
            number = int(arrivals[0].arrival)
            continue
        step, seen = flight.popleft()
        seen["finished"] = [r.index for r in core.complete(step)]
        made[-1]["processed"].append(seen["step"])
        while len(made) > 2:
            yield made.popleft()
