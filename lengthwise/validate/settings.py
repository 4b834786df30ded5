"""An engine's settings, under vLLM's names, as the fields of our own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lengthwise.validate.measured import MeasuredError
from sim.hardware import hardware_called
from sim.models import MODELS

SAME = {
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "max_model_len": "max_model_len",
    "chunked_prefill": "enable_chunked_prefill",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "prefix_caching": "enable_prefix_caching",
    "enable_prefix_caching": "enable_prefix_caching",
    "async_scheduling": "async_scheduling",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "scheduling_policy": "order",
    "watermark": "watermark",
    "block_size": "block_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "num_gpu_blocks": "num_gpu_blocks_override",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "tensor_parallel": "tp",
    "tensor_parallel_size": "tp",
}
"""Keys of a `config.json`, and the fields that they are."""

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "fp8": "fp8", "bf16": "bf16"}


def engine_settings(config: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """The fields that an engine's configuration sets, and what a reader should know of them.

    A value is plain, or an object with `value`; where that is null, its `upper_bound` is taken.

    Raises:
        MeasuredError: another engine than vLLM, or several of them side by side.
    """
    engine = _plain(config.get("engine")) or "vLLM"
    if str(engine).lower() != "vllm":
        raise MeasuredError(f"{where}: engine is {engine!r}; only vLLM's settings are understood")
    if (_plain(config.get("data_parallel")) or 1) != 1:
        raise MeasuredError(f"{where}: data_parallel is over 1; give the run of one engine")
    fields: dict[str, Any] = {"policy": "chunked-prefill", "like": "vllm"}
    notes = []
    for key, field in SAME.items():
        raw = config.get(key)
        value = _plain(raw)
        if value is None and isinstance(raw, Mapping) and raw.get("upper_bound") is not None:
            value = raw["upper_bound"]
            notes.append(f"{key} was not recorded: its upper bound, {value:,}, is taken")
        if value is not None:
            fields[field] = value
    for key, field in (("dtype", "dtype"), ("kv_cache_dtype", "kv_dtype")):
        words = str(_plain(config.get(key)) or "").split()
        if words and words[0] in _DTYPES:
            fields[field] = _DTYPES[words[0]]
    if config.get("model") is not None:
        fields["model"] = model_called(str(config["model"]))
    place = hardware_called(str(config.get("gpu") or ""))
    if place is not None:
        fields["hardware"] = place
    return fields, notes


def _plain(value: Any) -> Any:
    return value.get("value") if isinstance(value, Mapping) else value


def model_called(name: str) -> str:
    """The built-in model of a Hugging Face name; the name itself where none is built in."""
    last = name.rsplit("/", 1)[-1].lower().removesuffix("-instruct")
    return last if last in MODELS else name
