"""Replays a recording of an engine's own scheduler and names the first difference.

A recording says which requests arrived before which step and what the engine decided in each; its
format is described in docs/conform.md. Time plays no part: this is the third driver of the loop,
beside the simulated and the wall clock.
"""

from __future__ import annotations

import gzip
import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from policies.continuous import Continuous, Limits
from serving.blocks import Blocks
from serving.core import Core
from serving.prefix import PrefixBlocks
from serving.queue import ORDERS
from serving.recorder import ADMIT, Recorder
from serving.request import Request
from serving.step import Step, Wait


class RecordingError(ValueError):
    """A file that is no recording; the message names the file, the field and what was found."""


class VllmConfig(BaseModel):
    """The settings of a vLLM recording, under vLLM's names."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    block_size: int = 16
    num_gpu_blocks: int
    enable_prefix_caching: bool = False
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False


class RecordedRequest(BaseModel):
    """One request of a recording."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    idx: int
    arrival_step: int
    prompt_len: int
    output_len: int
    priority: int = 0
    prefix_id: int | None = None
    prefix_len: int = 0


class Recording(BaseModel):
    """A vLLM recording."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    vllm_version: str
    config: VllmConfig
    outcome: str
    unfinished: list[int]
    requests: list[RecordedRequest]
    iterations: list[dict[str, Any]]


class Difference(NamedTuple):
    """Where a replay first departs from its recording."""

    step: int
    field: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        return f"step {self.step} {self.field}: recorded {self.recorded}, here {self.replayed}"


def read(path: Path) -> Any:
    """The JSON of a recording, gzip-compressed or not.

    Raises:
        RecordingError: not readable, or not JSON.
    """
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        return json.loads(raw)
    except (OSError, EOFError, ValueError) as error:
        raise RecordingError(f"{path}: not a recording ({error})") from error


def parse(data: Any, name: str) -> Recording:
    """Check a recording's fields.

    Raises:
        RecordingError: names the first field that is missing or wrong.
    """
    try:
        return Recording.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RecordingError(f"{name}: {where}: {first['msg']}") from error


def requests_of(recording: Recording) -> list[Request]:
    """The requests, in order of arrival, with block hashes where a prefix is shared."""
    config, made = recording.config, []
    for r in sorted(recording.requests, key=lambda r: (r.arrival_step, r.idx)):
        shared = 0 if r.prefix_id is None else min(r.prompt_len, r.prefix_len)
        hashes: list[int] = []
        if config.enable_prefix_caching:
            for i in range(r.prompt_len // config.block_size):
                common = (i + 1) * config.block_size <= shared
                owner = 2 * (r.prefix_id or 0) if common else 2 * r.idx + 1
                hashes.append(owner << 32 | i)
        output = min(r.output_len, config.max_model_len - r.prompt_len)
        arrival = r.arrival_step + r.idx * 1e-6  # ties in priority go by step, then index
        made.append(Request(r.idx, arrival, r.prompt_len, output, r.priority, hashes))
    return made


def build(config: VllmConfig, refuse: bool = False) -> tuple[Core, Continuous, Recorder]:
    """The policy that a vLLM recording is held against.

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
    return Core(planner, recorder, config.max_model_len, refuse=refuse), planner, recorder


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
            "scheduled": {str(r.index): tokens[r] for r in planner.running if r in tokens},
            "preempted": [] if step is None else [r.index for r in step.preempted],
            "free_blocks": planner.blocks.free,
            "running": len(planner.running),
            "waiting": planner.waiting(),
            "finished": [],
        }
        if hits := self._hits():
            seen["cache_hit"] = hits
        return seen

    def _hits(self) -> dict[str, int]:
        new = self._events[self._seen :]
        self._seen = len(self._events)
        lines = zip(new[1::5], new[2::5], new[3::5], strict=True)
        return {str(r): tokens for r, kind, tokens in lines if kind == ADMIT and tokens}


def replay(recording: Recording, refuse: bool = False) -> Iterator[dict[str, Any]]:
    """What this project decides on a recording's requests, step by step, without end."""
    core, planner, recorder = build(recording.config, refuse)
    arrivals = deque(requests_of(recording))
    drive = _asynchronous if recording.config.async_scheduling else _synchronous
    return drive(core, Observer(planner, recorder), arrivals)


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


def compare(recording: Recording) -> Difference | None:
    """The first difference between a recording and this project's own decisions, or None."""
    ours = replay(recording)
    finished: set[int] = set()
    last = 0
    for recorded in recording.iterations:
        last = recorded.get("step", last)
        replayed = next(ours, None)
        if replayed is None:
            return Difference(last, "step", "one more", "none")
        for field in ("step", *(f for f in replayed if f != "step")):
            theirs, mine = recorded.get(field), replayed[field]
            same = list(theirs.items()) == list(mine.items()) if (
                isinstance(theirs, dict) and isinstance(mine, dict)
            ) else theirs == mine
            if not same:
                return Difference(last, field, theirs, mine)
        if "cache_hit" in recorded and "cache_hit" not in replayed:
            return Difference(last, "cache_hit", recorded["cache_hit"], {})
        finished.update(replayed["finished"])
    unfinished = [r.idx for r in recording.requests if r.idx not in finished]
    if unfinished != recording.unfinished:
        return Difference(last, "unfinished", recording.unfinished, unfinished)
    return None
