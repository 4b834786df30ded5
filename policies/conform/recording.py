"""What a recording of an engine's scheduler holds, and how it is read and checked."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class RecordingError(ValueError):
    """A file that is no recording; the message names the file, the field and what was found."""


class _Part(BaseModel):
    # A field that is not known here may change decisions, so it is an error, not ignored.
    model_config = ConfigDict(extra="forbid", frozen=True)


class RecordedRequest(_Part):
    """One request of a recording."""

    idx: Count
    arrival_step: Count
    prompt_len: Positive
    output_len: Positive
    priority: int = 0
    prefix_id: Count | None = None
    prefix_len: Count = 0

    @property
    def shared(self) -> int:
        """Tokens at the head of the prompt that are those of its prefix."""
        return 0 if self.prefix_id is None else min(self.prompt_len, self.prefix_len)


class _Recording(_Part):
    name: str = ""
    note: str = ""
    seed: int = 0
    outcome: Literal["completed", "stuck", "bounded"]
    unfinished: list[int]
    max_iters: Positive = 20_000
    requests: Annotated[list[RecordedRequest], Field(min_length=1)]

    @model_validator(mode="after")
    def _indices_differ(self) -> _Recording:
        index, count = Counter(r.idx for r in self.requests).most_common(1)[0]
        if count > 1:
            raise ValueError(f"{count} requests have idx {index}")
        return self


class VllmConfig(_Part):
    """The settings of a vLLM recording, under vLLM's names."""

    max_num_batched_tokens: Positive
    max_num_seqs: Positive
    max_model_len: Positive
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: Count = 0
    policy: Literal["fcfs", "priority"] = "fcfs"
    block_size: Positive = 16
    num_gpu_blocks: Annotated[int, Field(ge=2)]
    usable_blocks: Positive | None = None
    enable_prefix_caching: bool = False
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    batch_queue_size: Literal[2] = 2


class VllmIteration(_Part):
    """What vLLM decided in one call of its scheduler."""

    step: Count
    scheduled: dict[int, Positive]
    preempted: list[int]
    free_blocks: Count
    running: Count
    waiting: Count
    finished: list[int]
    processed: list[int] | None = None
    cache_hit: dict[int, Positive] | None = None


class VllmRecording(_Recording):
    """A recording of vLLM's V1 scheduler."""

    vllm_version: str
    config: VllmConfig
    iterations: Annotated[list[VllmIteration], Field(min_length=1)]

    @model_validator(mode="after")
    def _prompts_fit(self) -> VllmRecording:
        limit = self.config.max_model_len
        for r in self.requests:
            if r.prompt_len >= limit:
                raise ValueError(
                    f"request {r.idx} has prompt_len {r.prompt_len}, max_model_len {limit}"
                )
        return self


class SglangConfig(_Part):
    """The settings of an SGLang recording, under SGLang's names."""

    max_total_tokens: Positive
    max_running_requests: Positive
    chunked_prefill_size: int = 8192
    max_prefill_tokens: Positive = 16_384
    enable_mixed_chunk: bool = False
    schedule_policy: Literal["fcfs"] = "fcfs"
    schedule_conservativeness: Annotated[float, Field(gt=0)] = 1.0
    page_size: Positive = 1
    disable_radix_cache: bool = False
    ignore_eos: bool = False
    context_len: Positive = 131_072
    overlap_schedule: Literal[False] = False
    tree_cache: str = ""
    new_token_ratio_init: float | None = None
    new_token_ratio_min: float | None = None
    new_token_ratio_decay: float | None = None


class SglangIteration(_Part):
    """What SGLang decided in one turn of its event loop."""

    step: Count
    kind: Literal["prefill", "mixed", "decode", "idle"]
    scheduled: dict[int, Positive]
    retracted: list[int]
    available: Count
    evictable: Count | None = None
    running: Count
    waiting: Count
    ratio: float
    chunked: int | None = None
    finished: list[int]
    cache_hit: dict[int, Positive] | None = None


class SglangRecording(_Recording):
    """A recording of SGLang's scheduler."""

    sglang_version: str
    config: SglangConfig
    iterations: Annotated[list[SglangIteration], Field(min_length=1)]


Recording = VllmRecording | SglangRecording

ENGINES: dict[str, type[VllmRecording] | type[SglangRecording]] = {
    "vllm_version": VllmRecording,
    "sglang_version": SglangRecording,
}
"""The field that says which engine was recorded."""


def read(path: Path) -> Recording:
    """A recording from its JSON file, gzip-compressed or not.

    Raises:
        RecordingError: not readable, not JSON, of no known engine, or a field missing or wrong.
    """
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        data = json.loads(raw)
    except (OSError, EOFError, ValueError) as error:
        raise RecordingError(f"{path}: cannot be read as JSON: {error}") from error
    return parse(data, str(path))


def parse(data: Any, name: str) -> Recording:
    """Check a recording's fields.

    Args:
        data: the file's JSON.
        name: what error messages call it.

    Raises:
        RecordingError: names the first field that is missing or wrong.
    """
    engines = [key for key in ENGINES if isinstance(data, dict) and key in data]
    if len(engines) != 1:
        raise RecordingError(
            f"{name}: not a recording: exactly one of {', '.join(ENGINES)} must say which "
            f"engine it is of, found {', '.join(engines) or 'none'}"
        )
    try:
        return ENGINES[engines[0]].model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "requests"
        found = "" if first["type"] == "missing" else f", found {str(first['input'])[:80]}"
        raise RecordingError(f"{name}: {where}: {first['msg']}{found}") from error
