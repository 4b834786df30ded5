"""How wrong a cost model may be: the same model at the ends of its range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.step import Features
from sim.cost import CostModel
from sim.fitted import FittedCost
from sim.roofline import Roofline

TAIL = 0.05
"""Share of held-out steps beyond either end of a fitted cost's range."""


@dataclass(frozen=True)
class CostRange:
    """A cost model's faster and slower end, and where they come from."""

    faster: CostModel
    slower: CostModel
    said: str


def range_of(cost: CostModel) -> CostRange | None:
    """The range of a cost model, or None of one that is not uncertain (`fixed`).

    A fitted cost takes its own held-out residuals, by kind of step: their 5th and 95th
    percentiles. The roofline takes the largest mean error that its GPU's kernels have on held-out
    rows, as all of a step's kernels may be wrong alike.
    """
    if isinstance(cost, FittedCost):
        ends = cost.at_residual(TAIL), cost.at_residual(1 - TAIL)
        return CostRange(*ends, "the cost file's held-out residuals, 5th to 95th percentile")
    if isinstance(cost, Roofline):
        fit = cost.hardware.efficiency
        error = fit.error
        return CostRange(
            Times(cost, 1 / (1 + error)),
            Times(cost, 1 + error),
            f"±{100 * error:.1f}%, the largest mean error of the roofline's kernels on held-out "
            f"rows of {fit.gpu}",
        )
    return None


class Times:
    """Another cost model's times, all multiplied by a factor."""

    def __init__(self, cost: Roofline, factor: float) -> None:
        self._cost = cost
        self.factor = factor
        self.peak_flops, self.peak_bytes_per_s = cost.peak_flops, cost.peak_bytes_per_s

    def seconds(self, f: Features) -> float:
        """Seconds of one step."""
        return self._cost.seconds(f) * self.factor

    def seconds_run(self, f: Features, k: int) -> Any:
        """Seconds of `k` decode steps in a row, shape [k]."""
        return np.asarray(self._cost.seconds_run(f, k)) * self.factor

    def flops(self, columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float64]:
        """Useful arithmetic of each step, FLOPs, shape [steps]."""
        return self._cost.flops(columns)

    def bytes(self, columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float64]:
        """Weights and KV that each step must move, bytes, shape [steps]."""
        return self._cost.bytes(columns)
