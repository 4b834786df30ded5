"""What a GPU can do: datasheet figures, and how much of them its kernels reach."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sim.curve import Curve

T = TypeVar("T")


class HardwareError(ValueError):
    """Hardware that is not known, or that lacks what was asked of it."""


@dataclass(frozen=True)
class Gemm:
    """A matrix product [m, k] × [k, n]: latency + max(compute, bytes / bandwidth, depth × k).

    compute = 2 × m × n × (k + products_per_output) / reached rate: writing an output costs as much
    as so many more products. Depth is one tile going through k, which more units cannot shorten.
    """

    latency_s: float
    depth_s: float
    """Seconds per k."""
    products_per_output: float
    outputs: tuple[float, ...]
    """m × n where `compute` holds; straight lines over log2 between, constant outside."""
    compute: tuple[float, ...]
    """Share of the dense peak: few outputs do not fill the GPU."""
    bytes: tuple[float, ...]
    """Bytes moved where `memory` holds; straight lines over log2 between, constant outside."""
    memory: tuple[float, ...]
    """Share of the memory bandwidth, over 1 where repeated calls find the weights in the cache."""

    def cold(self) -> Gemm:
        """The same without help from the cache; see `Decode.cold`."""
        return replace(self, memory=tuple(min(m, self.memory[-1]) for m in self.memory))


@dataclass(frozen=True)
class Prefill:
    """Attention of prompts: latency + max(compute, bytes / bandwidth, depth × keys of a row).

    compute = 4 × head_dim × heads × (pairs + pairs_per_token × tokens + pairs_per_row × rows) /
    reached rate: tiles cut by the causal mask, reading and writing the token, starting a row.
    Depth is one tile of queries going through a row's keys, which more units cannot shorten.
    """

    latency_s: float
    compute: float
    """Share of the dense peak."""
    pairs_per_token: float
    pairs_per_row: float
    memory: float
    """Share of the memory bandwidth."""
    depth_s: float
    """Seconds per key."""


@dataclass(frozen=True)
class Decode:
    """Attention of decodes: latency + max(rows × KV heads × head_s, KV bytes / bandwidth)."""

    latency_s: float
    head_s: float
    bytes: tuple[float, ...]
    """KV bytes of one call where `memory` holds; the time is straight between."""
    memory: tuple[float, ...]
    """Share of the memory bandwidth, over 1 where repeated calls find the KV in the L2 cache."""

    def read_s(self, bytes_per_s: float) -> Curve:
        """Seconds of one call over its KV bytes; past the last point at the last point's share."""
        seconds = [
            b / (bytes_per_s * share) for b, share in zip(self.bytes, self.memory, strict=True)
        ]
        return Curve((0.0, *self.bytes), (0.0, *seconds), seconds[-1] / self.bytes[-1])

    def cold(self) -> Decode:
        """The same without help from the L2 cache.

        Kernels are measured over and over on the same KV; in a step every layer reads its own. No
        share is then above that of the largest read, which no cache holds.
        """
        return replace(self, memory=tuple(min(m, self.memory[-1]) for m in self.memory))


@dataclass(frozen=True)
class Efficiency:
    """How much of a GPU its kernels reach, fitted on measured kernels of one GPU."""

    gpu: str
    source: str
    error: float
    """The largest mean error of its kernels (products, prefill, decode) on held-out rows."""
    gemm: Mapping[str, Gemm]
    """By dtype, `bf16` and where measured `fp8`."""
    prefill: Prefill
    decode: Decode
    allreduce: Mapping[int, Curve]
    """By number of GPUs: seconds over message bytes. Empty where nothing was measured."""

    def scaled(self, compute: float, memory: float) -> Efficiency:
        """The same with all shares of the peak and of the bandwidth multiplied."""
        return replace(
            self,
            gemm={
                dtype: replace(
                    g,
                    compute=tuple(share * compute for share in g.compute),
                    memory=tuple(share * memory for share in g.memory),
                )
                for dtype, g in self.gemm.items()
            },
            prefill=replace(
                self.prefill,
                compute=self.prefill.compute * compute,
                memory=self.prefill.memory * memory,
            ),
            decode=replace(
                self.decode, memory=tuple(share * memory for share in self.decode.memory)
            ),
        )


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
    here = Path(__file__).parent
    gpus = tomllib.loads((here / "hardware.toml").read_text(encoding="utf-8"))
    fits = json.loads((here / "efficiency.json").read_text(encoding="utf-8"))
    return gpus, {gpu: efficiency_of(gpu, raw) for gpu, raw in fits.items()}


def efficiency_of(gpu: str, raw: Mapping[str, Any]) -> Efficiency:
    """An `Efficiency` from its JSON form."""
    return Efficiency(
        gpu=gpu,
        source=str(raw["source"]),
        error=float(raw["error"]),
        gemm={k: _coefficients(Gemm, v) for k, v in raw["gemm"].items()},
        prefill=_coefficients(Prefill, raw["prefill"]),
        decode=_coefficients(Decode, raw["decode"]),
        allreduce={int(n): Curve(c["bytes"], c["seconds"]) for n, c in raw["allreduce"].items()},
    )


def _coefficients(kind: type[T], raw: Mapping[str, Any]) -> T:
    """A dataclass of coefficients from JSON, lists as tuples."""
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()})


def hardware_names() -> tuple[str, ...]:
    """The names that `load_hardware` knows."""
    return tuple(_tables()[0])


def hardware_called(title: str) -> str | None:
    """The hardware whose name's words are all in a GPU's title; None where there is none."""
    text = title.lower().replace(" gb", "gb")
    found = [name for name in hardware_names() if all(word in text for word in name.split("-"))]
    return max(found, key=len, default=None)


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
        efficiency=fits[str(row["efficiency"])].scaled(
            float(row.get("compute_scale", 1.0)), float(row.get("memory_scale", 1.0))
        ),
    )
