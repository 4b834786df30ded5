"""What `--like ENGINE` means: an engine's flags as our knobs, and its own defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from policies.compose import PolicyChoiceError

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

ENGINES: dict[str, tuple[Flag, ...]] = {"vllm": VLLM}
"""The engines that `--like` takes."""


def vllm_sizes(memory_bytes: float, name: str) -> tuple[int, int]:
    """vLLM's server defaults of `max_num_batched_tokens` and `max_num_seqs` on a GPU."""
    if memory_bytes >= 160 * GIB:
        return 16384, 1024
    if memory_bytes >= 70 * GIB and "a100" not in name.lower():
        return 8192, 1024
    return 2048, 256


def engine_defaults(engine: str, memory_bytes: float | None, hardware: str) -> dict[str, Any]:
    """The knobs as the engine would set them by itself.

    Args:
        engine: one of `ENGINES`.
        memory_bytes: of one GPU; None where there is none, which counts as a small one.
        hardware: the GPU's name.

    Raises:
        PolicyChoiceError: an engine that is not known.
    """
    from policies.names import nearest

    if engine not in ENGINES:
        raise PolicyChoiceError(f"--like {engine}: {nearest(engine, ENGINES)}")
    defaults = {flag.knob: flag.default for flag in ENGINES[engine] if flag.default is not None}
    sizes = vllm_sizes(memory_bytes or 0.0, hardware)
    defaults["max_num_batched_tokens"], defaults["max_num_seqs"] = sizes
    return defaults
