"""How long one kernel of a step takes on a GPU: the formulas behind the roofline.

Every function takes numbers or arrays (and broadcasts); all return seconds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.curve import Curve
from sim.hardware import Decode, Gemm, Hardware, HardwareError, Prefill
from sim.models import Model, dtype_bytes

Seconds = NDArray[np.float64]


def product_s(
    fit: Gemm,
    flops: float,
    bytes_per_s: float,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    weight: int = 2,
    activation: int = 2,
) -> Seconds:
    """A matrix product [m, k] × [k, n]: latency + the longest of computing, moving and depth.

    `flops` is the dense peak, `weight` and `activation` the bytes of an operand; outputs have 2.
    """
    m, n, k = (np.asarray(x, np.float64) for x in (m, n, k))
    share = np.interp(np.log2(np.maximum(m * n, 1.0)), np.log2(fit.outputs), fit.compute)
    compute = 2.0 * m * n * (k + fit.products_per_output) / (flops * share)
    moved = n * k * weight + m * k * activation + m * n * 2.0
    reached = np.interp(np.log2(np.maximum(moved, 1.0)), np.log2(fit.bytes), fit.memory)
    move = moved / (bytes_per_s * reached)
    return fit.latency_s + np.maximum(np.maximum(compute, move), k * fit.depth_s)


def prefill_attention_s(
    fit: Prefill,
    flops: float,
    bytes_per_s: float,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: int,
    pairs: ArrayLike,
    tokens: ArrayLike,
    rows: ArrayLike,
    kv_tokens: ArrayLike,
    kv_size: int = 2,
) -> Seconds:
    """Attention of prompts: latency + the longest of computing pairs, moving Q, K, V, O, and depth.

    `kv_tokens` are summed over rows; rows are taken as alike where only sums are known.
    """
    heads, kv_heads, pairs, tokens, rows, kv_tokens = (
        np.asarray(x, np.float64) for x in (heads, kv_heads, pairs, tokens, rows, kv_tokens)
    )
    work = pairs + fit.pairs_per_token * tokens + fit.pairs_per_row * rows
    compute = 4.0 * head_dim * heads * work / (flops * fit.compute)
    moved = 2.0 * head_dim * (kv_heads * kv_tokens * kv_size + heads * tokens * 2.0)
    depth = kv_tokens / rows * fit.depth_s
    return fit.latency_s + np.maximum(
        np.maximum(compute, moved / (bytes_per_s * fit.memory)), depth
    )


def decode_attention_s(
    fit: Decode, bytes_per_s: float, rows: ArrayLike, kv_heads: ArrayLike, kv_bytes: ArrayLike
) -> Seconds:
    """Attention of decodes: latency + the longer of starting rows and reading their KV."""
    rows, kv_heads, kv_bytes = (np.asarray(x, np.float64) for x in (rows, kv_heads, kv_bytes))
    read = fit.read_s(bytes_per_s).many(kv_bytes)
    return fit.latency_s + np.maximum(rows * kv_heads * fit.head_s, read)


def gemm_s(hardware: Hardware, dtype: str, m: ArrayLike, n: int, k: int) -> Seconds:
    """A product with weights of `dtype` on `hardware`.

    fp8 is multiplied as fp8 where the GPU has the units and was measured, otherwise unpacked.
    """
    fits = hardware.efficiency.gemm
    native = dtype == "fp8" and hardware.fp8_flops > 0 and "fp8" in fits
    size = dtype_bytes(dtype)
    return product_s(
        fits["fp8" if native else "bf16"].cold(),
        hardware.fp8_flops if native else hardware.bf16_flops,
        hardware.bytes_per_s,
        m,
        n,
        k,
        weight=size,
        activation=size if native else max(size, 2),
    )


def layer_s(
    model: Model, hardware: Hardware, tp: int, dtype: str, slots: NDArray[np.float64]
) -> Seconds:
    """One layer of `slots` tokens on each of `tp` GPUs, without attention and all-reduce."""
    q = model.heads * model.head_dim // tp
    kv = model.kv_heads_per_gpu(tp) * model.head_dim
    hidden, inter = model.hidden, model.intermediate // tp
    products = (
        gemm_s(hardware, dtype, slots, q + 2 * kv, hidden)
        + gemm_s(hardware, dtype, slots, hidden, q)
        + gemm_s(hardware, dtype, slots, 2 * inter, hidden)
        + gemm_s(hardware, dtype, slots, hidden, inter)
    )
    # Two norms with their residuals read and write 8 × hidden, rotary and the KV write
    # 2 × (q + 2 kv), the gate 3 × intermediate, 16 bit each.
    small = 2.0 * slots * (8 * hidden + 2 * (q + 2 * kv) + 3 * inter)
    return products + small / (hardware.bytes_per_s * hardware.efficiency.gemm["bf16"].memory[-1])


def allreduce_curve(
    hardware: Hardware, tp: int, bytes_per_s: float | None, latency_s: float | None
) -> Curve | None:
    """Seconds of one all-reduce over message bytes; None on one GPU.

    The measured curve, or where a bandwidth is given latency + bytes / bandwidth.

    Raises:
        HardwareError: nothing was measured for `tp` GPUs and nothing was given.
    """
    if tp == 1:
        return None
    if bytes_per_s is not None:
        base = latency_s or 0.0
        return Curve((0.0, 1e9), (base, base + 1e9 / bytes_per_s))
    measured = hardware.efficiency.allreduce
    if tp not in measured:
        found = f"measured for {', '.join(map(str, measured))} GPUs" if measured else "not measured"
        raise HardwareError(
            f"--tp {tp} on {hardware.name}: all-reduce is {found}; "
            "give --allreduce-gbps and --allreduce-us"
        )
    return measured[tp]
