"""The cost model that a command line names: `fixed`, `roofline`, or a file of a fitted one."""

from __future__ import annotations

from pathlib import Path

from sim.cost import CostModel
from sim.fixed import FixedCost
from sim.hardware import load_hardware
from sim.models import load_model
from sim.roofline import OVERHEAD_LAYER_S, Roofline


def load_cost(
    spec: str,
    *,
    step_s: float | None = None,
    model: str | None = None,
    hardware: str | None = None,
    tp: int = 1,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    overhead_layer_s: float | None = None,
    allreduce_bytes_per_s: float | None = None,
    allreduce_s: float | None = None,
) -> CostModel:
    """The cost model called `spec`.

    For a file, `model` and `hardware` are only what its FLOPs and bytes are counted for, and its
    layers where the file names no model; whether it was calibrated for them
    `FittedCost.differences` says.

    Raises:
        ValueError: an unknown kind, a flag that it needs and lacks, or a file that is no cost file;
            for what a flag names see `load_model` and `load_hardware`.
    """
    if spec == "fixed":
        if step_s is None:
            raise ValueError("--cost fixed needs --step-ms")
        return FixedCost(step_s)
    if spec == "roofline":
        if model is None or hardware is None:
            raise ValueError("--cost roofline needs --model and --hardware")
        return Roofline(
            load_model(model),
            load_hardware(hardware),
            tp,
            dtype,
            kv_dtype,
            allreduce_bytes_per_s,
            allreduce_s,
            OVERHEAD_LAYER_S if overhead_layer_s is None else overhead_layer_s,
        )
    if not Path(spec).is_file():
        raise ValueError(f"--cost {spec}: neither fixed nor roofline, and no such file")
    from sim.fitted import FittedCost

    shape = None if model is None else load_model(model)
    cost = FittedCost.load(
        spec,
        shape=shape,
        overhead_layer_s=overhead_layer_s,
        allreduce_bytes_per_s=allreduce_bytes_per_s,
        allreduce_s=allreduce_s or 0.0,
    )
    if shape is not None:
        place = None if hardware is None else load_hardware(hardware)
        cost.on(shape, place, tp, dtype, kv_dtype)
    return cost
