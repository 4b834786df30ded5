"""Everything that `validate` found out, as one document with stable keys, and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthwise.config import RunConfig
from lengthwise.validate.compare import (
    FIGURES,
    QUANTITIES,
    TIMES,
    Comparison,
    Figures,
    compare,
    light,
    peer_wape,
)
from lengthwise.validate.measured import Measured
from lengthwise.validate.overhead import Overhead
from lengthwise.validate.predict import Prediction, drawn, other_origin, predict
from lengthwise.validate.steps import FirstDifference, PlanCost, first_difference, plan_cost
from serving.record import Record

LOW, HIGH = 5.0, 95.0
"""Percentiles of the draws between which a range lies."""

Ranges = Mapping[str, Mapping[str, tuple[float, float] | None]]


@dataclass(frozen=True)
class Report:
    """A measured run, its prediction, and how far apart they are."""

    measured: Measured
    prediction: Prediction
    main: Comparison
    """Of all requests behind the warm-up."""
    light: Comparison
    """Of those among them that met an empty queue."""
    warmup: Comparison | None
    ranges: Ranges | None
    plan: PlanCost | None
    parted: FirstDifference | None
    overhead: Overhead | None
    peer: Mapping[str, float | None] | None
    notes: tuple[str, ...]

    @property
    def overhead_us(self) -> float | None:
        """The overhead a layer in force, µs."""
        cost: Any = self.prediction.ready.cost
        layer = getattr(cost, "overhead_layer_s", None)
        return None if layer is None else layer * 1e6


def validate(
    measured: Measured,
    config: RunConfig,
    overhead: Overhead | None = None,
    warmup: int = 0,
    seed: int = 0,
) -> Report:
    """Simulate a measured run and compare.

    Args:
        measured: the run.
        config: how it is simulated (`predict.configured`).
        overhead: what was fitted, if anything: it is used.
        warmup: the first so many requests are compared apart.
        seed: of the ranges' draws.
    """
    prediction = predict(measured, config, None if overhead is None else overhead.us_per_layer)
    ready, record = prediction.ready, prediction.record
    behind = np.arange(len(measured)) >= warmup
    rows = behind if warmup else None
    mine = measured.record
    notes = (*measured.notes, *record.notes, *other_origin(ready, measured))
    return Report(
        measured,
        prediction,
        compare(measured, record, rows),
        compare(measured, record, behind & light(measured)),
        compare(measured, record, ~behind) if warmup else None,
        ranges([compare(measured, r, rows).predicted for r in drawn(ready, measured, seed)]),
        None if mine is None else plan_cost(mine, ready.cost),
        None if mine is None else first_difference(mine, record),
        overhead,
        peer_wape(measured, behind),
        tuple(dict.fromkeys(notes)),
    )


def ranges(draws: Sequence[Figures]) -> Ranges | None:
    """Between which values 90% of the draws' figures lie; None without draws."""
    if not draws:
        return None
    return {name: {f: _range([d[name][f] for d in draws]) for f in FIGURES} for name in QUANTITIES}


def _range(values: list[float | None]) -> tuple[float, float] | None:
    known: NDArray[np.float64] = np.array([v for v in values if v is not None])
    if not len(known):
        return None
    return float(np.percentile(known, LOW)), float(np.percentile(known, HIGH))


# One document ------------------------------------------------------------------------------------


def document(report: Report) -> dict[str, Any]:
    """The report as JSON has it: times in ms, throughput in tokens/s, errors in %."""
    main, ready = report.main, report.prediction.ready
    fitted = report.overhead
    return {
        "run": report.measured.name,
        "policy": ready.name,
        "requests": main.requests,
        "left_out": main.left_out,
        **_sides(main),
        "range": None if report.ranges is None else _scaled(report.ranges),
        "light_load": {"requests": report.light.requests, **_sides(report.light)},
        "warmup": None
        if report.warmup is None
        else {"requests": report.warmup.requests, **_sides(report.warmup)},
        "peer_wape_pct": None if report.peer is None else _percent(report.peer),
        "overhead_us_per_layer": report.overhead_us,
        "overhead_fitted_on": None if fitted is None else fitted.run,
        "overhead_halves": None if fitted is None else _halves(fitted),
        "plan_cost": None if report.plan is None else _plan_cost(report.plan),
        "first_difference": None if report.parted is None else asdict(report.parted),
        "plans_compared": report.measured.record is not None,
        "config": ready.config.model_dump(mode="json", exclude_none=True),
        "notes": list(report.notes),
    }


def _sides(c: Comparison) -> dict[str, Any]:
    return {
        "error_pct": {name: _percent(figures) for name, figures in c.error.items()},
        "wape_pct": _percent(c.wape),
        "measured": _scaled(c.measured),
        "predicted": _scaled(c.predicted),
    }


def _percent(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if v is None else 100 * v for name, v in values.items()}


def _scaled(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Seconds as ms, tokens per second as they are; pairs as lists."""

    def scaled(name: str, value: Any) -> Any:
        factor = 1.0 if name == "throughput" else 1e3
        if isinstance(value, tuple):
            return [factor * v for v in value]
        return None if value is None else factor * value

    return {name: {f: scaled(name, v) for f, v in row.items()} for name, row in figures.items()}


def _halves(fitted: Overhead) -> dict[str, Any] | None:
    halves = fitted.halves
    if halves is None:
        return None
    return {
        "overhead_us_per_layer": halves.overhead_us,
        "first": {"requests": halves.first.requests, **_sides(halves.first)},
        "second": {"requests": halves.second.requests, **_sides(halves.second)},
    }


def _plan_cost(plan: PlanCost) -> dict[str, Any]:
    return {
        "steps": plan.steps,
        "measured_s": plan.measured_s,
        "predicted_s": plan.predicted_s,
        "error_pct": 100 * plan.error,
        "mean_step_error_pct": 100 * plan.mean_error,
        "p90_step_error_pct": 100 * plan.p90_error,
        "by_region_pct": _percent(plan.by_region),
    }


def save_records(report: Report, folder: Any) -> None:
    """Write the predicted record, and the measured one where there is one, into a folder."""
    sides: dict[str, Record | None] = {
        "predicted": report.prediction.record,
        "measured": report.measured.record,
    }
    for name, record in sides.items():
        if record is not None:
            (folder / name).mkdir()
            record.write(folder / name)


__all__ = ["TIMES", "Report", "document", "ranges", "save_records", "validate"]
