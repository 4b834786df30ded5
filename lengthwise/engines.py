"""What `--like ENGINE` means: an engine's flags as our knobs, and its own defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from policies.compose import Point, PolicyChoiceError

GIB = 1 << 30


@dataclass(frozen=True)
class Flag:
    """One flag of an engine: the knob of ours that it is, and what the engine has by default."""

    engine_flag: str
    knob: str
    default: Any
    note: str = ""


VLLM_VERSION = "0.31.0"
"""The version that the table was checked against."""

VLLM: tuple[Flag, ...] = (
    Flag("--max-num-batched-tokens", "max_num_batched_tokens", "by memory", "see below"),
    Flag("--max-num-seqs", "max_num_seqs", "by memory", "see below"),
    Flag("--max-model-len", "max_model_len", None, "the model's own limit"),
    Flag("--enable-chunked-prefill", "enable_chunked_prefill", True, "off: lifecycle continuous"),
    Flag("--long-prefill-token-threshold", "long_prefill_token_threshold", 0),
    Flag("--scheduling-policy", "order", "fcfs", "fcfs or priority"),
    Flag("--gpu-memory-utilization", "gpu_memory_utilization", 0.92),
    Flag("--block-size", "block_size", 16),
    Flag("--num-gpu-blocks-override", "num_gpu_blocks_override", None, "one is the null block"),
    Flag("--enable-prefix-caching", "enable_prefix_caching", True, "where hashes are known"),
    Flag("--watermark", "watermark", 0.0),
    Flag("--async-scheduling", "async_scheduling", True),
    Flag("--tensor-parallel-size", "tp", 1),
)
"""vLLM's flags. The defaults of the first two by the GPU's memory, for the server: 8,192 tokens and
1,024 seats from 70 GiB except on an A100, 16,384 and 1,024 from 160 GiB, else 2,048 and 256."""

SGLANG_VERSION = "0.5.21"
"""The version that the table was checked against."""

SGLANG: tuple[Flag, ...] = (
    Flag("--chunked-prefill-size", "max_num_batched_tokens", "by memory", "-1: whole prompts"),
    Flag("--max-prefill-tokens", "max_prefill_tokens", 16384),
    Flag("--max-running-requests", "max_num_seqs", "by memory", "at most half the pool's tokens"),
    Flag("--schedule-policy", "order", "fcfs", "fcfs only"),
    Flag("--schedule-conservativeness", "schedule_conservativeness", 1.0),
    Flag("--page-size", "block_size", 1),
    Flag("--enable-mixed-chunk", "enable_mixed_chunk", False),
    Flag("--disable-radix-cache", "enable_prefix_caching", True, "the opposite"),
    Flag("--mem-fraction-static", "mem_fraction_static", "by memory"),
    Flag("--max-total-tokens", "num_gpu_blocks_override", None, "whole pages, and a null block"),
    Flag("--context-length", "max_model_len", None, "the model's own limit"),
    Flag("--tp-size", "tp", 1),
)
"""SGLang's flags. Those with an effect of their own, and the defaults by the GPU's memory, are in
`lengthwise.sglang_flags`."""

ENGINES: dict[str, tuple[Flag, ...]] = {"vllm": VLLM, "sglang": SGLANG}
"""The engines that `--like` takes."""

OWN_POLICY = {"vllm": "chunked-prefill", "sglang": "sglang"}
"""The policy that is an engine's own, where `--like` names the engine and nothing the policy."""


def engine_of(like: str | None, policy: str, point: Point) -> str | None:
    """The engine whose defaults a policy takes; of `own`, the one whose scheduler it is.

    Raises:
        PolicyChoiceError: an engine that is not known, or whose scheduler the policy is not.
    """
    from policies.names import nearest

    if like is None:
        return None
    scheduler = "sglang" if point.lifecycle == "sglang" else None
    if point.grouping == "fcfs" and point.lifecycle in ("continuous", "chunked-prefill"):
        scheduler = "vllm"
    if like == "own":
        if scheduler is None:
            raise PolicyChoiceError(
                f"--like own: {policy} is the scheduler of no engine; take --like vllm, or leave "
                "--like out"
            )
        return scheduler
    if like not in ENGINES:
        raise PolicyChoiceError(f"--like {like}: {nearest(like, [*ENGINES, 'own'])}")
    if (like == "sglang") != (scheduler == "sglang"):
        raise PolicyChoiceError(
            f"--like {like}: {policy} does not decide as that engine does; take --policy "
            f"{OWN_POLICY[like]}, or --like own, with which each policy has its own engine's "
            "defaults"
        )
    return like


def vllm_sizes(memory_bytes: float, name: str) -> tuple[int, int]:
    """vLLM's server defaults of `max_num_batched_tokens` and `max_num_seqs` on a GPU."""
    if memory_bytes >= 160 * GIB:
        return 16384, 1024
    if memory_bytes >= 70 * GIB and "a100" not in name.lower():
        return 8192, 1024
    return 2048, 256


def vllm_defaults(memory_bytes: float | None, hardware: str) -> dict[str, Any]:
    """The knobs as vLLM would set them by itself.

    Args:
        memory_bytes: of one GPU; None where there is none, which counts as a small one.
        hardware: the GPU's name.
    """
    defaults = fixed_defaults(VLLM)
    sizes = vllm_sizes(memory_bytes or 0.0, hardware)
    defaults["max_num_batched_tokens"], defaults["max_num_seqs"] = sizes
    return defaults


def fixed_defaults(flags: tuple[Flag, ...]) -> dict[str, Any]:
    """The defaults that are the same everywhere."""
    return {f.knob: f.default for f in flags if f.default not in (None, "by memory")}
