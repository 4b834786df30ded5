"""A measured run simulated: the same requests, the same settings, a predicted clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lengthwise.api import run, whole
from lengthwise.config import RunConfig
from lengthwise.prepare import Prepared, prepare
from lengthwise.validate.measured import Measured, MeasuredError
from serving.record import Record
from sim.fitted import FittedCost

DRAWS = 24
"""Draws of a range."""


def configured(measured: Measured, asked: Mapping[str, Any]) -> RunConfig:
    """How the run is simulated: as it was measured, and as asked for on top of that.

    Raises:
        MeasuredError: no hardware is known, and it decides the memory or the time of a step.
        PolicyChoiceError: a field that is unknown or out of range.
    """
    config = RunConfig.of(**{**measured.settings, **asked})
    timed = (config.cost or "roofline") == "roofline"
    if config.hardware is None and (timed or config.num_gpu_blocks_override is None):
        raise MeasuredError(
            f"{measured.name} does not say on which GPU it ran: give --hardware, or "
            "--cost FILE and --num-gpu-blocks-override"
        )
    if config.model is None:
        raise MeasuredError(f"{measured.name} does not say which model it ran: give --model")
    return config


@dataclass(frozen=True)
class Prediction:
    """A simulated run, and what it was simulated with."""

    ready: Prepared
    record: Record


def predict(measured: Measured, config: RunConfig, overhead_us: float | None = None) -> Prediction:
    """Simulate the run.

    Args:
        measured: what was run.
        config: see `configured`.
        overhead_us: what a layer takes besides its kernels, µs; None: as the configuration says.
    """
    if overhead_us is not None:
        config = config.model_copy(update={"overhead_us_per_layer": overhead_us})
    ready = prepare(config, measured.trace)
    return Prediction(ready, simulated(ready, measured))


def simulated(ready: Prepared, measured: Measured) -> Record:
    """Simulate a prepared run to its end."""
    return whole(run(ready, measured.trace))


def drawn(ready: Prepared, measured: Measured, seed: int) -> Iterator[Record]:
    """The run under cost models that are as wrong as held-out steps were, one a draw.

    Only a fitted cost knows how wrong it is; another one gives nothing.
    """
    if isinstance(ready.cost, FittedCost):
        for cost in ready.cost.draws(DRAWS, seed):
            yield simulated(replace(ready, cost=cost), measured)


def other_origin(ready: Prepared, measured: Measured) -> list[str]:
    """Whether a fitted cost was calibrated on another device than the record's, as a note."""
    if not isinstance(ready.cost, FittedCost) or measured.record is None:
        return []
    return ready.cost.differences(hardware=measured.record.config.get("device"))


def busy_share(record: Record) -> float:
    """Share of the time from the first arrival to the last end in which steps ran."""
    steps = record.steps
    busy = float((steps["end_s"] - steps["start_s"]).sum())
    span = float(steps["end_s"].max() - record.requests["arrival_s"].min())
    return busy / span if span > 0 else float(np.nan)
