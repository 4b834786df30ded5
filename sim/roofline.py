"""A step's time from shapes and hardware figures alone: the sum over its operations of the longer
of computing and moving bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serving.step import Features
from sim.curve import Curve
from sim.hardware import Hardware
from sim.models import Model
from sim.operations import allreduce_curve, gemm_s, layer_s
from sim.useful import useful_bytes, useful_flops

SLOTS = (*(2**i for i in range(9)), *range(384, 1024, 128), *(2**i for i in range(10, 16)))
"""Where the layers' time is worked out, slots of one step; straight lines between."""

OVERHEAD_LAYER_S = 12e-6
"""Gaps between kernels and the host's share, a layer: 0.4 ms for 32 layers, which is what one run
of vLLM 0.19.0 on an RTX 4090 took over the sum of its kernels."""

TABLE: Final = 4096
"""Slots and sampled rows for which the value is looked up, not worked out."""

SHORT_RUN: Final = 128
"""Steps up to which a loop is quicker than arrays."""


class Roofline:
    """A cost model that needs no measurement of the model it prices.

    With s slots, P and D computed pairs of prefill and decode, r sampled rows, a step takes

        layers(s) + prefill(P, slots, KV) + head(r) + decode(D, rows)

    layers: per layer q/k/v, o, gate/up and down products of s tokens, the small kernels between
    them (bound by bytes), launches, and two all-reduces where tp > 1; a curve over s made once.
    """

    __slots__ = (
        "_decode",
        "_decode_fixed",
        "_decode_row",
        "_head",
        "_layers",
        "_of_head",
        "_of_layers",
        "_prefill_depth",
        "_prefill_fixed",
        "_prefill_kv",
        "_prefill_pair",
        "_prefill_qo",
        "_prefill_row",
        "_prefill_slot",
        "dtype",
        "hardware",
        "kv_dtype",
        "model",
        "peak_bytes_per_s",
        "peak_flops",
        "tp",
    )

    def __init__(
        self,
        model: Model,
        hardware: Hardware,
        tp: int = 1,
        dtype: str = "bf16",
        kv_dtype: str = "bf16",
        allreduce_bytes_per_s: float | None = None,
        allreduce_s: float | None = None,
        overhead_layer_s: float = OVERHEAD_LAYER_S,
    ) -> None:
        """Work out the coefficients of `model` on `tp` GPUs.

        `allreduce_bytes_per_s` and `allreduce_s` replace the measured all-reduce by latency plus
        message bytes over bandwidth; `overhead_layer_s` is what a layer takes besides its kernels.

        Raises:
            ModelError: heads that `tp` does not divide, an unknown dtype.
            HardwareError: no all-reduce was measured for `tp` GPUs and none was given.
        """
        model.check_tp(tp)
        self.model, self.hardware, self.tp = model, hardware, tp
        self.dtype, self.kv_dtype = dtype, kv_dtype
        self.peak_flops = hardware.peak_flops(dtype) * tp
        self.peak_bytes_per_s = hardware.bytes_per_s * tp

        fit, layers, bandwidth = hardware.efficiency, model.layers, hardware.bytes_per_s
        slots = np.array(SLOTS, np.float64)
        layer = layer_s(model, hardware, tp, dtype, slots)
        layer += overhead_layer_s
        reduce = allreduce_curve(hardware, tp, allreduce_bytes_per_s, allreduce_s)
        if reduce is not None:
            layer += 2.0 * reduce.many(slots * (2 * model.hidden))
        self._layers = Curve(SLOTS, layers * layer)
        self._of_layers: list[float] = self._layers.many(np.arange(TABLE)).tolist()
        self._of_layers[0] = 0.0
        if self._of_layers[1] < 0:
            raise ValueError(
                f"--overhead-us-per-layer {1e6 * overhead_layer_s:g} leaves no step any time"
            )
        head = gemm_s(hardware, "bf16", slots, -(-model.vocab // tp), model.hidden)
        sample = slots * (8.0 * model.vocab) / bandwidth  # two passes over 32-bit logits
        self._head = Curve(SLOTS, head + sample)
        self._of_head: list[float] = self._head.many(np.arange(TABLE)).tolist()
        self._of_head[0] = 0.0

        heads, kv_token = model.heads // tp, model.kv_bytes_per_token(kv_dtype, tp)
        prefill, decode = fit.prefill, fit.decode.cold()
        pair = 4.0 * model.head_dim * heads * layers / (hardware.bf16_flops * prefill.compute)
        self._prefill_fixed = layers * prefill.latency_s
        self._prefill_pair = pair
        self._prefill_slot = pair * prefill.pairs_per_token
        self._prefill_row = pair * prefill.pairs_per_row
        self._prefill_depth = layers * prefill.depth_s
        self._prefill_kv = kv_token / (bandwidth * prefill.memory)
        self._prefill_qo = 4.0 * model.head_dim * heads * layers / (bandwidth * prefill.memory)
        self._decode_fixed = layers * decode.latency_s
        self._decode_row = layers * decode.head_s * model.kv_heads_per_gpu(tp)
        read, per_pair = decode.read_s(bandwidth), kv_token / layers  # bytes of one layer
        self._decode = Curve(
            [x / per_pair for x in read.xs],
            [layers * y for y in read.ys],
            layers * read.slopes[-1] * per_pair,
        )

    def seconds(self, f: Features) -> float:
        """Seconds of one step; an empty step takes none."""
        _, _, prompt, decodes, _, prompt_pairs, _, pairs, prompts, rows, sampled, kv, _ = f
        slots = prompt + decodes
        if slots < TABLE and sampled < TABLE:
            total = self._of_layers[slots] + self._of_head[sampled]
        else:
            total = self._dense(slots, sampled)
        if prompt:
            total += self._prefill(prompt, prompt_pairs, prompts, kv)
        if not decodes:
            return total
        curve = self._decode
        i = bisect_right(curve.xs, pairs) - 1
        read = curve.ys[i] + (pairs - curve.xs[i]) * curve.slopes[i]
        least = rows * self._decode_row
        return total + (self._decode_fixed + (read if read > least else least))

    def seconds_run(self, f: Features, k: int) -> list[float]:
        """Seconds of `k` decode steps in a row."""
        total = self._dense(f.prefill_slots + f.decode_slots, f.sampled_rows)
        if f.prefill_slots:
            chunks = f.prefill_slots, f.prefill_computed_pairs, f.prefill_rows, f.prefill_kv
            total += self._prefill(*chunks)
        if not f.decode_slots:
            return [total] * k
        least, fixed = f.decode_rows * self._decode_row, self._decode_fixed
        if k <= SHORT_RUN:
            reads = self._decode.along(f.decode_computed_pairs, f.decode_rows, k)
            return [total + (fixed + (x if x > least else least)) for x in reads]
        pairs = f.decode_computed_pairs + f.decode_rows * np.arange(k, dtype=np.int64)
        value = total + (fixed + np.maximum(self._decode.many(pairs), least))
        return list(value.tolist())

    def _dense(self, slots: int, sampled: int) -> float:
        """Layers without attention, and the LM head; an empty step has none."""
        layers = self._of_layers[slots] if slots < TABLE else self._layers.at(slots)
        return layers + (self._of_head[sampled] if sampled < TABLE else self._head.at(sampled))

    def _prefill(self, slots: int, pairs: int, rows: int, read: int) -> float:
        """Attention of the prompts' chunks: slots, computed pairs, rows and KV positions read."""
        compute = pairs * self._prefill_pair + slots * self._prefill_slot + rows * self._prefill_row
        moved = read * self._prefill_kv + slots * self._prefill_qo
        depth = read / rows * self._prefill_depth
        if moved > compute:
            compute = moved
        return self._prefill_fixed + (compute if compute > depth else depth)

    def flops(self, columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float64]:
        """Useful arithmetic of each step over all GPUs, FLOPs, shape [steps].

        Two a weight and useful token, 4 × head_dim × heads × layers a useful pair, and the LM head
        on sampled rows. `columns` has the step table's names.
        """
        return useful_flops(self.model, columns)

    def bytes(self, columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float64]:
        """Weights and KV that each step must move over all GPUs, bytes, shape [steps]."""
        return useful_bytes(self.model, self.dtype, self.kv_dtype, columns)
