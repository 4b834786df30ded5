"""The configuration of a run: every flag as a field, checked, and given back by every record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

from lengthwise.engines import OWN_POLICY
from policies.compose import PolicyChoiceError
from serving.slo import Limit, check_goodput, parse_goodput, parse_slo, positive

TRACE, POLICY, STEP, MEMORY, SGLANG, TIME, CLUSTER, SLO, RECORD = (
    "The trace",
    "The policy: who runs next",
    "What bounds a step",
    "Memory",
    "SGLang's own: with --policy sglang",
    "Time",
    "The cluster",
    "What is good enough",
    "The record",
)


MOST_OVERHEAD_US = 1e6
"""A second a layer: what is further from 0 is no overhead."""


def flag(panel: str, text: str, default: Any = None, **limits: Any) -> Any:
    """A field that is also a flag of the command line: its panel in --help, and its help."""
    return Field(default, description=text, json_schema_extra={"panel": panel}, **limits)


def panel_of(field: FieldInfo) -> str:
    """The panel that a field's flag stands in."""
    extra = field.json_schema_extra
    return str(extra["panel"]) if isinstance(extra, dict) else ""


class RunConfig(BaseModel):
    """What a run was asked to do. None means: not asked for, the default stands."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trace: str | None = Field(None, description="A trace file or a built-in workload.")
    format: str | None = flag(TRACE, "Format of the file; by its content if not given.")
    limit: int | None = flag(TRACE, "Only the first so many requests.", ge=1)
    rate_scale: float = flag(TRACE, "Arrivals so many times as fast.", 1.0, gt=0)
    seed: int = flag(TRACE, "Seed of a built-in workload.", 0, ge=0)
    on_bad_row: Literal["error", "skip"] = flag(TRACE, "A bad row: error, or skip it.", "error")

    spread_ties: bool = flag(TRACE, "Spread arrivals of equal time within the clock's tick.", False)
    tokenizer: str | None = flag(TRACE, "Tokenizer file, for traces of text.")

    policy: str = flag(POLICY, "By name, or a class: file.py:MyPolicy.", "chunked-prefill")
    layout: str | None = flag(POLICY, "Pad to: limit, bucket, longest; or packed.")
    lifecycle: str | None = flag(POLICY, "drain, continuous or chunked-prefill.")
    order: str | None = flag(POLICY, "Of the queue: fcfs, priority or shortest.")
    like: str | None = flag(POLICY, "An engine's defaults: vllm, sglang; own: the policy's.")

    max_num_seqs: int | None = flag(STEP, "Seats.")
    max_num_batched_tokens: int | None = flag(STEP, "Token budget.")
    max_model_len: int | None = flag(STEP, "Longest prompt + output, tokens.")
    bucket_bounds: tuple[int, ...] | None = flag(STEP, "Prompt lengths, e.g. 1024,2048,4096.")
    max_wait_ms: float | None = flag(STEP, "Longest wait for company in a bucket.")
    enable_chunked_prefill: bool | None = flag(STEP, "Prompts in chunks, or whole.")
    long_prefill_token_threshold: int | None = flag(STEP, "Cap on one prompt's chunk.", ge=0)
    enable_prefix_caching: bool | None = flag(STEP, "Reuse blocks of equal hashes.")
    async_scheduling: bool | None = flag(STEP, "Plan a step while one runs.")
    watermark: float | None = flag(STEP, "Share of KV that admission leaves free.")

    block_size: int | None = flag(MEMORY, "Tokens of a KV block.")
    num_gpu_blocks_override: int | None = flag(MEMORY, "KV blocks, one the null block.")
    gpu_memory_utilization: float | None = flag(MEMORY, "Share of the memory to use.")

    chunked_prefill_size: int | None = flag(SGLANG, "--max-num-batched-tokens; -1: whole prompts.")
    max_prefill_tokens: int | None = flag(SGLANG, "Prompt tokens that end a prefill batch.")
    max_running_requests: int | None = flag(SGLANG, "--max-num-seqs.")
    schedule_policy: str | None = flag(SGLANG, "fcfs; see --order.")
    schedule_conservativeness: float | None = flag(SGLANG, "Share of outputs kept room for.")
    page_size: int | None = flag(SGLANG, "--block-size.")
    enable_mixed_chunk: bool | None = flag(SGLANG, "Decodes ride along with prefills.")
    disable_radix_cache: bool | None = flag(SGLANG, "--no-enable-prefix-caching.")
    mem_fraction_static: float | None = flag(SGLANG, "Share of a GPU for weights and KV.")
    max_total_tokens: int | None = flag(SGLANG, "KV tokens.")
    ignore_eos: bool | None = flag(SGLANG, "No request can end early: it changes admission.")

    cost: str | None = flag(TIME, "roofline, fixed, or the FILE of a fitted cost.")
    step_ms: float | None = flag(TIME, "Time of a step under --cost fixed.")
    model: str | None = flag(TIME, "Built-in model, or a Hugging Face config.json.")
    hardware: str | None = flag(TIME, "GPU: h100, a100-80g, l40s, …")
    tp: int | None = flag(TIME, "Tensor-parallel GPUs.", ge=1)
    dtype: str = flag(TIME, "Weights: bf16 or fp8.", "bf16")
    kv_dtype: str = flag(TIME, "KV cache: bf16 or fp8.", "bf16")
    overhead_us_per_layer: float | None = flag(
        TIME,
        "What a layer takes besides its kernels, µs; see validate --fit-overhead.",
        ge=-MOST_OVERHEAD_US,
        le=MOST_OVERHEAD_US,
    )
    allreduce_gbps: float | None = flag(TIME, "All-reduce with --tp: bandwidth, GB/s.", gt=0)
    allreduce_us: float | None = flag(TIME, "All-reduce with --tp: latency, µs.", ge=0)
    cuda_graphs: bool = flag(TIME, "Decode rows round up to captured sizes.", False)
    jump: bool = flag(TIME, "Take runs of equal decode steps at once.", True)

    replicas: int = flag(CLUSTER, "Engines behind a router.", 1, ge=1)
    router: str | None = flag(CLUSTER, "Which replica a request goes to, e.g. round-robin.")
    groups: tuple[dict[str, Any], ...] | None = Field(
        None, description="Groups of replicas that differ: each its `replicas` and other fields."
    )

    slo: dict[str, float] | None = flag(SLO, "Limits of the run: ttft_p99_ms=500,tpot_p99_ms=50.")
    goodput: dict[str, float] | None = flag(SLO, "Limits of each request: ttft:500 tpot:50.")

    record: Literal["full", "requests", "summary"] = flag(
        RECORD, "What to keep: full; requests: no steps nor events; or the summary alone.", "full"
    )

    @field_validator("slo", mode="before")
    @classmethod
    def _slo(cls, given: Any) -> Any:
        if isinstance(given, str):
            return parse_slo(given)
        if isinstance(given, dict):
            return {k: Limit.of(str(k), positive(str(k), v)).limit_ms for k, v in given.items()}
        return given

    @field_validator("goodput", mode="before")
    @classmethod
    def _goodput(cls, given: Any) -> Any:
        if isinstance(given, str):
            return parse_goodput(given)
        if isinstance(given, dict):
            return {k: positive(k, v) for k, v in check_goodput(given).items()}
        return given

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Check and build; the policy is the engine's own where only `like` is given.

        Raises:
            PolicyChoiceError: names the flag, what was given and what it takes.
        """
        own = OWN_POLICY.get(str(fields.get("like")))
        if own is not None:
            fields.setdefault("policy", own)
        try:
            return cls(**fields)
        except ValidationError as error:
            first = error.errors()[0]
            name = "--" + str(first["loc"][0]).replace("_", "-")
            if first["type"] == "extra_forbidden":
                raise PolicyChoiceError(f"{name}: there is no such option") from error
            message = first["msg"].removeprefix("Value error, ")
            raise PolicyChoiceError(f"{name} {first.get('input')}: {message}") from error

    def with_defaults(self, defaults: dict[str, Any]) -> Self:
        """The same with `defaults` where nothing was asked for."""
        missing = {k: v for k, v in defaults.items() if getattr(self, k) is None}
        return self.model_copy(update=missing)


def read_config(path: Path, given_as: str = "--config") -> dict[str, Any]:
    """The fields that a configuration file gives: YAML, TOML, JSON, or a record's config.json.

    Raises:
        PolicyChoiceError: no such file, or not a table of fields.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = _parse(text, path.suffix.lower())
    except (OSError, ValueError) as error:
        raise PolicyChoiceError(f"{given_as} {path}: {error}") from error
    if isinstance(data, dict) and isinstance(data.get("run"), dict):
        data = data["run"]  # a record's config.json
    if not isinstance(data, dict):
        raise PolicyChoiceError(f"{given_as} {path}: expected fields and values")
    return {str(key).replace("-", "_"): value for key, value in data.items()}


def _parse(text: str, suffix: str) -> Any:
    if suffix == ".json":
        return json.loads(text)
    if suffix == ".toml":
        import tomllib

        return tomllib.loads(text)
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every setting with its path and its value as text."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value if isinstance(value, str) else json.dumps(value)
