"""Sums over the steps of a run, taken as the steps come: their order and pieces change no bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import frexp
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_SCALE = 1200
"""Sums are whole numbers of 2**-1200, in which every float is a whole number."""

_PART = 1 << 16
_HUGE = 2.0**1000


class ExactSum:
    """The sum of floats, rounded once: the same in whatever order and pieces they are added."""

    def __init__(self) -> None:
        self._units = 0
        self._defined = True

    def add(self, values: ArrayLike) -> None:
        """Add numbers, shape [n]; one that is not finite makes the sum undefined."""
        v = np.asarray(values, np.float64)
        if not np.isfinite(v).all():
            self._defined = False
            return
        huge = np.abs(v) > _HUGE
        if huge.any():
            self._units += sum(map(_units, v[huge].tolist()))
            v = v[~huge]
        for begin in range(0, len(v), _PART):
            self._units += _sum(v[begin : begin + _PART])

    @property
    def value(self) -> float | None:
        """The float nearest to the sum; None if it is undefined."""
        return self._units / (1 << _SCALE) if self._defined else None


def _sum(v: NDArray[np.float64]) -> int:
    """The sum of at most `_PART` numbers, none over `_HUGE`, in units.

    Again and again the leading bits of all are split off, few enough that floats add them without
    rounding (Rump, Ogita, Oishi: Accurate floating-point summation I, 2008, section 3).
    """
    units = 0
    while top := float(np.abs(v).max(initial=0.0)):
        pull = 1.5 * 2.0 ** (frexp(top)[1] + 17)
        leading = (v + pull) - pull
        units += _units(float(leading.sum()))
        v = v - leading
    return units


def _units(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator * ((1 << _SCALE) // denominator)


@dataclass(frozen=True)
class Efficiency:
    """How much of what the hardware computed was useful: token slots, and query-key pairs."""

    useful_slots: int
    slots: int
    useful_pairs: int
    pairs: int

    @property
    def padding_ratio(self) -> float | None:
        """1 − useful slots / computed slots; None where nothing was computed."""
        return 1 - self.useful_slots / self.slots if self.slots else None

    @property
    def attention_efficiency(self) -> float | None:
        """Useful query-key pairs / computed pairs; None where nothing was computed."""
        return self.useful_pairs / self.pairs if self.pairs else None


_COUNTS = tuple(
    f"{phase}_{name}"
    for phase in ("prefill", "decode")
    for name in ("tokens", "slots", "useful_pairs", "computed_pairs")
)


@dataclass
class StepTotals:
    """What a summary needs to know of the steps."""

    steps: int = 0
    filled: int = 0
    """Steps that computed anything."""
    kv_peak: int | None = None
    """Most KV blocks in use; None without steps."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    """Tokens, slots and pairs by column."""
    busy_s: ExactSum = field(default_factory=ExactSum)
    running_s: ExactSum = field(default_factory=ExactSum)
    """Running requests times seconds."""
    kv_s: ExactSum = field(default_factory=ExactSum)
    """KV blocks in use times seconds."""
    flops: ExactSum = field(default_factory=ExactSum)
    bytes: ExactSum = field(default_factory=ExactSum)

    def add(self, steps: Mapping[str, Any]) -> None:
        """Count steps: columns of `serving.tables.STEPS`, shape [steps] each, or such a table."""
        column: dict[str, NDArray[Any]] = {
            name: np.asarray(steps[name])
            for name in (*_COUNTS, "start_s", "end_s", "running", "kv_blocks_used")
        }
        if not len(column["start_s"]):
            return
        self.steps += len(column["start_s"])
        self.filled += int(np.count_nonzero(column["prefill_slots"] + column["decode_slots"]))
        self.kv_peak = max(self.kv_peak or 0, int(column["kv_blocks_used"].max()))
        for name in _COUNTS:
            self.counts[name] += int(column[name].sum())
        seconds = column["end_s"] - column["start_s"]
        self.busy_s.add(seconds)
        self.running_s.add(column["running"] * seconds)
        self.kv_s.add(column["kv_blocks_used"] * seconds)
        self.flops.add(steps["flops"])
        self.bytes.add(steps["bytes"])

    @property
    def efficiency(self) -> dict[str, Efficiency]:
        """The use made of what was computed, for `prefill`, `decode` and the `whole` run."""
        values = list(self.counts.values())
        prefill, decode = values[:4], values[4:]
        return {
            "prefill": Efficiency(*prefill),
            "decode": Efficiency(*decode),
            "whole": Efficiency(*(p + d for p, d in zip(prefill, decode, strict=True))),
        }
