"""SGLang's settings under its own names, and what it sets by itself."""

from __future__ import annotations

from dataclasses import dataclass

CLIP_MAX_NEW_TOKENS = 4096
"""Outputs of one request that admission looks ahead at most."""

SPARE_TOKENS = 7
"""Tokens of the context that SGLang leaves free: a prompt must end 7 before it, an output 2."""

GIB = 1 << 30


@dataclass(frozen=True)
class SglangLimits:
    """What bounds a batch, checked against SGLang 0.5.21."""

    max_total_tokens: int  # KV pool
    context_len: int
    max_running_requests: int
    chunked_prefill_size: int = 8192  # tokens of a prefill batch; -1: prompts stay whole
    max_prefill_tokens: int = 16384
    enable_mixed_chunk: bool = False  # decodes ride along with a prefill batch
    schedule_conservativeness: float = 1.0
    page_size: int = 1
    disable_radix_cache: bool = False
    ignore_eos: bool = False  # of all requests: with the radix cache off, another admission

    @property
    def chunking(self) -> bool:
        """Whether prompts are chunked."""
        return self.chunked_prefill_size > 0

    @property
    def mixed(self) -> bool:
        """Whether decodes ride along with prefill batches."""
        return self.enable_mixed_chunk and self.chunking

    @property
    def planned(self) -> bool:
        """Whether admission simulates the decodes ahead instead of reserving a share of them."""
        return self.ignore_eos and self.disable_radix_cache


def default_chunked_prefill_size(memory_bytes: float | None) -> int:
    """`--chunked-prefill-size` by the memory of one GPU; None: not known."""
    if memory_bytes is None:
        return 4096
    for below, size in ((20, 2048), (60, 4096), (160, 8192)):
        if memory_bytes < below * GIB:
            return size
    return 16384


def default_mem_fraction_static(
    memory_bytes: float,
    chunked_prefill_size: int,
    max_prefill_tokens: int = 16384,
    tensor_parallel: int = 1,
) -> float:
    """`--mem-fraction-static`: the share of a GPU that weights and KV pool have, 3 digits.

    What is left is 0.5 GiB, 1.5 MiB a token of a prefill batch, 2 MiB a row of the largest
    captured decode, 8 MiB a captured prefill and 1/8 GiB a GPU of the group; on GPUs of more than
    60 GiB at least 10 GiB (`handle_gpu_memory_settings`).

    Args:
        memory_bytes: of one GPU.
        chunked_prefill_size: tokens of a chunk; -1: prompts stay whole.
        max_prefill_tokens: tokens of a prefill batch of whole prompts.
        tensor_parallel: GPUs of the group.
    """
    mib = memory_bytes / (1 << 20)
    tokens = chunked_prefill_size if chunked_prefill_size > 0 else max_prefill_tokens
    reserved = 512 + 1.5 * max(tokens, 2048) + tensor_parallel / 8 * 1024
    reserved += 2 * _captured_rows(mib / 1024, tensor_parallel)
    reserved += 8 * _captured_prefills(chunked_prefill_size)
    if mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return round((mib - reserved) / mib, 3)


def _captured_rows(gib: float, tensor_parallel: int) -> int:
    """Rows of the largest decode that is captured as a graph."""
    for below, few, many in ((20, 8, 8), (35, 48, 160), (60, 32, 160), (160, 256, 512)):
        if gib < below:
            return few if tensor_parallel < 4 else many
    return 512


def _captured_prefills(most: int) -> int:
    """Sizes of prefill batches up to `most` tokens that are captured as graphs."""
    spans = (
        range(4, 33, 4),
        range(48, 257, 16),
        range(288, 513, 32),
        range(576, 1025, 64),
        range(1280, 4097, 256),
        range(4608, most + 1, 512),
    )
    return sum(size <= most for span in spans for size in span)


def default_max_running_requests(
    max_total_tokens: int, context_len: int, given: int | None = None
) -> int:
    """`--max-running-requests`: as given, else by the pool; never over half the pool's tokens."""
    if given is None:
        given = min(max(int(max_total_tokens / context_len * 512), 2048), 4096)
    return min(given, max_total_tokens // 2)
