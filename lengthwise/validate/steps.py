"""Two records side by side, step by step: what a plan costs, and where the plans part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving.record import Record
from serving.step import Features
from sim.cost import CostModel
from sim.fitted import regions


@dataclass(frozen=True)
class PlanCost:
    """The measured plan, priced: the cost model's error alone, without the schedule's."""

    steps: int
    measured_s: float
    predicted_s: float
    mean_error: float
    """Mean |predicted / measured − 1| of a step."""
    p90_error: float
    by_region: dict[str, float]
    """Predicted / measured − 1 of all seconds of steps of that kind."""

    @property
    def error(self) -> float:
        """Predicted / measured − 1 of all seconds."""
        return self.predicted_s / self.measured_s - 1


def plan_cost(record: Record, cost: CostModel) -> PlanCost | None:
    """Price the steps of a measured record; None if it has none that computed something.

    Where decodes go on, a step's time runs from the end of the step before: what the host does
    in between is part of it. Before another step the engine may have slept.
    """
    columns = {name: record.steps[name].to_numpy(np.int64) for name in Features._fields}
    start, end = (record.steps[name].to_numpy(np.float64) for name in ("start_s", "end_s"))
    before = np.where(columns["decode_rows"] > 0, np.append(start[:1], end[:-1]), start)
    seconds = end - np.minimum(before, start)
    busy = (columns["prefill_slots"] + columns["decode_slots"] > 0) & (seconds > 0)
    if not busy.any():
        return None
    rows = np.stack([column[busy] for column in columns.values()], axis=1).tolist()
    predicted = np.array([cost.seconds(Features(*row)) for row in rows])
    seconds = seconds[busy]
    error = np.abs(predicted / seconds - 1)
    kinds = regions({name: column[busy] for name, column in columns.items()})
    return PlanCost(
        len(seconds),
        float(seconds.sum()),
        float(predicted.sum()),
        float(error.mean()),
        float(np.quantile(error, 0.9)),
        {
            name: float(predicted[of].sum() / seconds[of].sum() - 1)
            for name, of in kinds.items()
            if of.any()
        },
    )


@dataclass(frozen=True)
class FirstDifference:
    """The first step whose plans differ."""

    step: int
    measured: Plan
    predicted: Plan


@dataclass(frozen=True)
class Plan:
    """What a step did, and when it began; `start_s` is None where a run has no such step."""

    start_s: float | None
    events: list[dict[str, Any]]
    """`kind`, `request` and `tokens` of each change, sorted."""


def first_difference(measured: Record, predicted: Record) -> FirstDifference | None:
    """Compare who was admitted, computed, preempted and ended in each step; None: all alike.

    Decodes that go on leave no event: they follow from what came before.
    """
    mine, theirs = _lines(measured.events), _lines(predicted.events)
    steps = max(len(measured.steps), len(predicted.steps))
    both = min(len(mine), len(theirs))
    parted = np.flatnonzero((mine[:both] != theirs[:both]).any(axis=1))
    if len(parted):
        step = int(min(mine[parted[0], 0], theirs[parted[0], 0]))
    elif len(mine) != len(theirs):
        longer = mine if len(mine) > len(theirs) else theirs
        step = int(longer[both, 0])
    elif len(measured.steps) != len(predicted.steps):
        step = min(len(measured.steps), len(predicted.steps))
    else:
        return None
    assert step < steps
    return FirstDifference(step, _plan(measured, step), _plan(predicted, step))


def _lines(events: pd.DataFrame) -> NDArray[np.int64]:
    """Step, request, kind and tokens of each event, sorted, shape [events, 4]."""
    kinds = events["kind"].cat.codes
    lines = np.stack(
        [
            c.to_numpy(np.int64)
            for c in (events["step"], events["request"], kinds, events["tokens"])
        ],
        axis=1,
    )
    order: NDArray[np.int64] = lines[np.lexsort(lines.T[::-1])]
    return order


def _plan(record: Record, step: int) -> Plan:
    at = record.steps[record.steps["step"] == step]
    events = record.events[record.events["step"] == step].sort_values(["request", "kind"])
    return Plan(
        float(at["start_s"].iloc[0]) if len(at) else None,
        [
            {"kind": str(kind), "request": int(request), "tokens": int(tokens)}
            for kind, request, tokens in zip(
                events["kind"], events["request"], events["tokens"], strict=True
            )
        ],
    )
