"""What a GPU can do: datasheet figures, and how much of them its kernels reach."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from sim.curve import Curve


class HardwareError(ValueError):
    """Hardware that is not known, or that lacks what was asked of it."""


@dataclass(frozen=True)
class Gemm:
    """A matrix product of m tokens: latency + max(FLOPs / reached rate, bytes / reached bandwidth).

    The reached rate is a share of the dense peak that depends on m; the bandwidth's share does not.
    """

    latency_s: float
    memory: float
    """Share of the memory bandwidth."""
    tokens: tuple[float, ...]
    """Where `compute` was measured, m."""
    compute: tuple[float, ...]
    """Share of the dense peak at `tokens`."""


@dataclass(frozen=True)
class Prefill:
    """Prefill attention: latency + max(FLOPs / reached rate, KV bytes / reached bandwidth).

    FLOPs = 4 × head_dim × heads × (pairs + pairs_per_token × tokens): each query token costs as
    much as so many more keys (tiles cut by the causal mask, reading and writing the token).
    """

    latency_s: float
    compute: float
    pairs_per_token: float
    memory: float


@dataclass(frozen=True)
class Decode:
    """Decode attention: latency + max(rows × KV heads × head_s, bytes / reached bandwidth).

    The reached share of the bandwidth depends on the bytes read by one call.
    """

    latency_s: float
    head_s: float
    bytes: tuple[float, ...]
    """Where `memory` was measured, bytes of KV one call reads."""
    memory: tuple[float, ...]
    """Share of the memory bandwidth at `bytes`."""


@dataclass(frozen=True)
class Efficiency:
    """How much of a GPU its kernels reach, fitted on measured kernels of one GPU."""

    gpu: str
    source: str
    gemm: Mapping[str, Gemm]
    """By dtype, `bf16` and where measured `fp8`."""
    prefill: Prefill
    decode: Decode
    allreduce: Mapping[int, Curve]
    """By number of GPUs: seconds over message bytes. Empty where nothing was measured."""
    layer_s: float
    """What a layer takes besides: launches of the small kernels between the large ones, seconds."""


@dataclass(frozen=True)
class Hardware:
    """One GPU."""

    name: str
    title: str
    memory_bytes: int
    bytes_per_s: float
    bf16_flops: float
    fp8_flops: float
    """0 where it has no fp8 units."""
    source: str
    efficiency: Efficiency

    @property
    def borrowed(self) -> str | None:
        """The GPU whose kernel efficiencies this one takes for want of its own, or None."""
        return None if self.efficiency.gpu == self.name else self.efficiency.gpu

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP/s of the units that multiply weights of `dtype`."""
        return self.fp8_flops if dtype == "fp8" and self.fp8_flops else self.bf16_flops


@cache
def _tables() -> tuple[dict[str, dict[str, Any]], dict[str, Efficiency]]:
    here = files("sim")
    gpus = tomllib.loads((here / "hardware.toml").read_text(encoding="utf-8"))
    fits = json.loads((here / "efficiency.json").read_text(encoding="utf-8"))
    return gpus, {gpu: efficiency_of(gpu, raw) for gpu, raw in fits.items()}


def efficiency_of(gpu: str, raw: Mapping[str, Any]) -> Efficiency:
    """An `Efficiency` from its JSON form."""
    return Efficiency(
        gpu=gpu,
        source=str(raw["source"]),
        gemm={
            k: Gemm(v["latency_s"], v["memory"], tuple(v["tokens"]), tuple(v["compute"]))
            for k, v in raw["gemm"].items()
        },
        prefill=Prefill(**raw["prefill"]),
        decode=Decode(
            raw["decode"]["latency_s"],
            raw["decode"]["head_s"],
            tuple(raw["decode"]["bytes"]),
            tuple(raw["decode"]["memory"]),
        ),
        allreduce={int(n): Curve(c["bytes"], c["seconds"]) for n, c in raw["allreduce"].items()},
        layer_s=float(raw["layer_s"]),
    )


def hardware_names() -> tuple[str, ...]:
    """The names that `load_hardware` knows."""
    return tuple(_tables()[0])


def load_hardware(name: str) -> Hardware:
    """The hardware called `name`, such as `h100` or `rtx-pro-6000`.

    Raises:
        HardwareError: an unknown name; the message suggests the nearest.
    """
    gpus, fits = _tables()
    key = name.lower().replace("_", "-").replace(" ", "-")
    if key not in gpus:
        near = get_close_matches(key, gpus, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise HardwareError(f"--hardware {name}: unknown; {hint}known are {', '.join(gpus)}")
    row = gpus[key]
    return Hardware(
        name=key,
        title=str(row["title"]),
        memory_bytes=int(float(row["memory_gib"]) * (1 << 30)),
        bytes_per_s=float(row["bandwidth_gbs"]) * 1e9,
        bf16_flops=float(row["bf16_tflops"]) * 1e12,
        fp8_flops=float(row["fp8_tflops"]) * 1e12,
        source=str(row["source"]),
        efficiency=fits[str(row["efficiency"])],
    )
