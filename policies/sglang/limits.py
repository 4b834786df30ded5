"""SGLang's settings under its own names, and what it sets by itself."""

from __future__ import annotations

from dataclasses import dataclass

CLIP_MAX_NEW_TOKENS = 4096
"""Outputs of one request that admission looks ahead at most."""

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


def default_max_running_requests(
    max_total_tokens: int, context_len: int, given: int | None = None
) -> int:
    """`--max-running-requests`: as given, else by the pool; never over half the pool's tokens."""
    if given is None:
        given = min(max(int(max_total_tokens / context_len * 512), 2048), 4096)
    return min(given, max_total_tokens // 2)


def default_limits(
    memory_bytes: float | None,
    max_total_tokens: int,
    context_len: int,
    max_running_requests: int | None = None,
) -> SglangLimits:
    """What SGLang sets by itself.

    Args:
        memory_bytes: of one GPU; None: not known.
        max_total_tokens: KV tokens that fit beside the weights.
        context_len: the model's limit, or `--context-length`.
        max_running_requests: as given by the user, if at all.
    """
    return SglangLimits(
        max_total_tokens=max_total_tokens,
        context_len=context_len,
        max_running_requests=default_max_running_requests(
            max_total_tokens, context_len, max_running_requests
        ),
        chunked_prefill_size=default_chunked_prefill_size(memory_bytes),
    )
