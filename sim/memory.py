"""How much KV cache fits beside the weights and the activations."""

from __future__ import annotations

from dataclasses import dataclass

from sim.hardware import Hardware
from sim.models import Model, dtype_bytes

GIB = 1 << 30
RESERVED_BYTES = 896 << 20
"""What a GPU holds besides weights, activations and KV: the driver's context, workspaces of
libraries, captured graphs. The figure that gives the 2,588 blocks
that vLLM 0.19.0 found for llama-3.1-8b on an RTX 4090 (0.9, 2,048 tokens, 256 seats)."""


DRIVER_BYTES = 512 << 20
"""Of these the driver's context, which is there before an engine looks at the free memory."""


class DoesNotFitError(ValueError):
    """A model that leaves no memory for its KV cache."""


@dataclass(frozen=True)
class Memory:
    """How one GPU's memory is divided, in bytes of one GPU of the tensor-parallel group."""

    blocks: int
    """KV blocks beside the activations of `max_num_batched_tokens` slots."""
    block_size: int
    """Tokens of one block."""
    block_bytes: int
    free_bytes: int
    """For KV and activations together: memory × utilisation − weights − reserved − logits.

    A drain batch fits if its blocks × `block_bytes` + its slots × `slot_bytes` are at most this.
    """
    slot_bytes: int
    """Activations of one slot."""
    weight_bytes: int


def slot_bytes(model: Model, tp: int = 1) -> int:
    """Activations of one slot at their peak, bytes, 16 bit each.

    Inside the MLP: the residual, the normed input and the product's output (3 × hidden), gate and
    up (2 × intermediate), and their product (1 × intermediate). Other layers' are freed by then.
    """
    return 2 * (3 * model.hidden + 3 * model.intermediate // tp)


def logits_bytes(model: Model, rows: int) -> int:
    """Logits of `rows` sampled rows, bytes: 16 bit from the LM head, and 32 bit to sample from."""
    return rows * model.vocab * (2 + 4)


def kv_capacity(
    model: Model,
    hardware: Hardware,
    *,
    tp: int = 1,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    utilization: float = 0.9,
    block_size: int = 16,
    max_num_batched_tokens: int = 8192,
    max_num_seqs: int = 256,
) -> Memory:
    """KV blocks = (memory × utilisation − weights − reserved − logits − activations) / block.

    Raises:
        DoesNotFitError: not even one block is left; says by how much, and what to do.
        ValueError: a utilisation outside (0, 1].
    """
    if not 0 < utilization <= 1:
        raise ValueError(
            f"--gpu-memory-utilization must be over 0 and at most 1, not {utilization:g}"
        )
    weights = model.weight_bytes(dtype, tp)
    budget = int(hardware.memory_bytes * utilization)
    rest = RESERVED_BYTES + logits_bytes(model, max_num_seqs)
    free = budget - weights - rest
    slot = slot_bytes(model, tp)
    block_bytes = block_size * model.kv_bytes_per_token(kv_dtype, tp)
    left = free - slot * max_num_batched_tokens
    if left < block_bytes:
        raise DoesNotFitError(
            f"{model.name} ({dtype}, tp {tp}) does not fit {hardware.title}: it is short of "
            f"{(block_bytes - left) / GIB:.1f} GiB. Of {hardware.memory_bytes / GIB:.1f} GiB × "
            f"{utilization:g} usable, weights take {weights / GIB:.1f}, the activations of "
            f"{max_num_batched_tokens} tokens {slot * max_num_batched_tokens / GIB:.1f}, logits "
            f"and the driver {rest / GIB:.1f}. {_advice(dtype)}"
        )
    return Memory(left // block_bytes, block_size, block_bytes, free, slot, weights)


def static_pool(
    model: Model, hardware: Hardware, share: float, page_bytes: int, tp: int, dtype: str
) -> int:
    """KV pages as SGLang counts them: (memory − driver) × share − weights, in whole pages.

    Raises:
        DoesNotFitError: not even one page is left; gives the sizes.
        ValueError: a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"--mem-fraction-static must be over 0 and at most 1, not {share:g}")
    weights = model.weight_bytes(dtype, tp)
    budget = int((hardware.memory_bytes - DRIVER_BYTES) * share)
    if budget - weights < page_bytes:
        raise DoesNotFitError(
            f"{model.name} ({dtype}, tp {tp}) does not fit {hardware.title}: its weights take "
            f"{weights / GIB:.1f} GiB, --mem-fraction-static {share:g} leaves them and the KV "
            f"cache {budget / GIB:.1f} GiB. {_advice(dtype)}, or a larger --mem-fraction-static"
        )
    return (budget - weights) // page_bytes


def _advice(dtype: str) -> str:
    quantise = "" if dtype_bytes(dtype) == 1 else "--dtype fp8, "
    return f"Try a larger --tp, {quantise}a GPU with more memory, or a smaller token budget"
