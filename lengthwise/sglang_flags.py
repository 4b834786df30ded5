"""SGLang's flags in SGLang's spelling, as the knobs that they are, and what it sets by itself."""

from __future__ import annotations

from typing import Any

from lengthwise.config import RunConfig
from lengthwise.engines import SGLANG, fixed_defaults
from policies.compose import PolicyChoiceError, Settings
from policies.sglang.limits import default_chunked_prefill_size, default_mem_fraction_static

SPELLINGS = {
    name: flag.knob
    for flag in SGLANG
    if (name := flag.engine_flag[2:].replace("-", "_")) in RunConfig.model_fields
    and name != flag.knob
}
"""Fields of a run's configuration that say another one as SGLang does."""

OWN = (
    "max_prefill_tokens",
    "schedule_conservativeness",
    "enable_mixed_chunk",
    "mem_fraction_static",
    "ignore_eos",
)
"""Fields that nothing else has a word for."""


def respell(config: RunConfig) -> RunConfig:
    """The same run with SGLang's spellings as the knobs that they stand for.

    Raises:
        PolicyChoiceError: a flag in both spellings, or a value that cannot be followed.
    """
    changes: dict[str, Any] = {}
    for name, knob in SPELLINGS.items():
        value = getattr(config, name)
        if value is None:
            continue
        flag = f"--{name.replace('_', '-')} {value}"
        if getattr(config, knob) is not None:
            raise PolicyChoiceError(
                f"{flag}: --{knob.replace('_', '-')} says the same; give one of the two"
            )
        changes |= _knob(name, knob, value, flag, config) | {name: None}
    return config.model_copy(update=changes)


def _knob(name: str, knob: str, value: Any, flag: str, config: RunConfig) -> dict[str, Any]:
    if name == "schedule_policy" and value != "fcfs":
        raise PolicyChoiceError(
            f"{flag}: only fcfs is modelled; for priorities take --order priority"
        )
    if name == "disable_radix_cache":
        return {knob: not value}
    if name == "chunked_prefill_size" and value == -1:
        return {"enable_chunked_prefill": False}
    if name == "max_total_tokens":  # whole pages, and the null block that this knob counts
        size = config.page_size or config.block_size or _default_page(config)
        if value < size:
            raise PolicyChoiceError(f"{flag}: not even one page of {size} tokens")
        return {knob: value // size + 1}
    if value < 1:
        raise PolicyChoiceError(f"{flag}: give at least 1")
    return {knob: value}


def _default_page(config: RunConfig) -> int:
    return Settings.block_size if config.like is None else int(fixed_defaults(SGLANG)["block_size"])


def sglang_defaults(config: RunConfig, memory_bytes: float | None) -> dict[str, Any]:
    """The knobs as SGLang would set them by itself, beside those that `config` has.

    Args:
        config: what was asked for, respelled.
        memory_bytes: of one GPU; None where there is none.
    """
    defaults = fixed_defaults(SGLANG)
    chunk = -1
    if config.enable_chunked_prefill is not False:
        chunk = config.max_num_batched_tokens or default_chunked_prefill_size(memory_bytes)
        defaults["max_num_batched_tokens"] = chunk
    if memory_bytes is not None and config.gpu_memory_utilization is None:
        most = config.max_prefill_tokens or defaults["max_prefill_tokens"]
        defaults["mem_fraction_static"] = default_mem_fraction_static(
            memory_bytes, chunk, most, config.tp or 1
        )
    return defaults
