"""How long one operation of a step takes on a GPU: the formulas behind the roofline."""

from __future__ import annotations

import numpy as np

from sim.curve import Curve
from sim.hardware import Gemm, Hardware, HardwareError
from sim.models import Model, dtype_bytes


def gemm_s(hardware: Hardware, dtype: str, m: int, n: int, k: int) -> float:
    """Seconds of one product [m, k] x [k, n] with weights of `dtype` and 16-bit outputs."""
    if m == 0:
        return 0.0
    fits = hardware.efficiency.gemm
    native = dtype == "fp8" and hardware.fp8_flops > 0 and "fp8" in fits
    fit: Gemm = fits["fp8" if native else "bf16"]
    size = dtype_bytes(dtype)
    # weights are read as stored; activations have the dtype that is multiplied
    moved = n * k * size + m * k * (size if native else max(size, 2)) + m * n * 2
    share = _within(fit.tokens, fit.compute, m)
    peak = hardware.fp8_flops if native else hardware.bf16_flops
    return fit.latency_s + max(
        2.0 * m * n * k / (peak * share), moved / (hardware.bytes_per_s * fit.memory)
    )


def layer_s(
    model: Model, hardware: Hardware, tp: int, dtype: str, slots: int, reduce: Curve | None
) -> float:
    """Seconds of one layer for `slots` tokens on each of `tp` GPUs, without attention."""
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
    small = 2 * slots * (8 * hidden + 2 * (q + 2 * kv) + 3 * inter)
    total = products + small / (hardware.bytes_per_s * hardware.efficiency.gemm["bf16"].memory)
    return total if reduce is None else total + 2.0 * reduce.at(slots * hidden * 2)


def _within(xs: tuple[float, ...], ys: tuple[float, ...], x: float) -> float:
    """Linear interpolation, constant outside."""
    return float(np.interp(x, xs, ys))


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
