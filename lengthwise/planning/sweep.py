"""A sweep: its cells, those that are stored already and those to run, and one table of them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lengthwise.planning.cells import Cell
from lengthwise.planning.parallel import Where, run_cells
from lengthwise.planning.spec import SweepSpec
from lengthwise.planning.store import Store

LEVEL = 0.95
"""Of the confidence intervals."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """What came out."""

    table: pd.DataFrame
    """A row a cell in the order of the spec: what was varied, `status`, `error`, `key`, figures."""
    intervals: pd.DataFrame | None
    """Where seeds are repeated, a row a figure and combination: `mean`, `low`, `high`, `seeds`."""
    reused: int
    """Cells that were in the store before."""
    computed: int
    failed: int


def run_sweep(
    spec: SweepSpec,
    store: Store,
    where: Where | None = None,
    progress: Callable[[int], None] = lambda done: None,
    cells: Sequence[tuple[dict[str, Any], Cell]] | None = None,
) -> Sweep:
    """Run the cells that the store does not have, and tabulate all.

    Args:
        spec: what to vary.
        store: where records go, shared with other sweeps.
        where: on what; local processes if not given.
        progress: told now and then how many cells are done.
        cells: those of the spec, where they are known already.

    Raises:
        ValueError: a spec or a cluster that cannot be used.
    """
    every = list(spec.cells()) if cells is None else cells
    wanted = {cell.key: cell for _, cell in every}
    missing = [cell for key, cell in wanted.items() if not store.has(key)]
    before = len(wanted) - len(missing)
    errors = {}
    if missing:
        errors = run_cells(missing, store, where or Where(), lambda done: progress(before + done))
    rows = [_row(told, cell.key, store, errors) for told, cell in every]
    table = pd.DataFrame(rows)
    intervals = intervals_of(table, spec.varied[:-1]) if len(spec.seeds) > 1 else None
    return Sweep(table, intervals, before, len(missing) - len(errors), len(errors))


def _row(
    told: Mapping[str, Any], key: str, store: Store, errors: Mapping[str, str]
) -> dict[str, Any]:
    """What tells a cell apart, how it ended, and its figures."""
    shown = {name: _plain(value) for name, value in told.items()}
    row = {**shown, "status": "done", "error": errors.get(key), "key": key}
    if key in errors:
        return {**row, "status": "failed"}
    summary = store.summary(key)
    limits = summary.pop("slo", {})
    figures = {name: _plain(value) for name, value in summary.items() if name not in row}
    return row | figures | {name: part["value_ms"] for name, part in limits.items()}


def _plain(value: Any) -> Any:
    """A value as one cell of a table."""
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def intervals_of(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Each figure's mean over seeds with its confidence interval (Student's t, two-sided).

    Args:
        table: a row a cell; those that failed are left out.
        by: columns that tell combinations apart, seeds aside.

    Returns:
        A row a combination and figure: `by`, `figure`, `seeds`, `mean`, `low`, `high`; no interval
        (null) of a single seed.
    """
    from scipy.stats import t

    done = table[table["status"] == "done"]
    known = {*by, "seed", "status", "error", "key"}
    figures = [
        name
        for name in done.select_dtypes("number").columns
        if name not in known and done[name].dtype != bool
    ]
    rows = []
    for values, group in done.groupby(list(by), sort=False, dropna=False):
        for name in figures:
            sample = group[name].dropna().to_numpy(np.float64)
            if not len(sample):
                continue
            mean, half = float(sample.mean()), float("nan")
            if len(sample) > 1:
                spread = float(sample.std(ddof=1)) / len(sample) ** 0.5
                half = float(t.ppf((1 + LEVEL) / 2, len(sample) - 1)) * spread
            ends = {"mean": mean, "low": mean - half, "high": mean + half}
            told = dict(zip(by, values, strict=True))
            rows.append({**told, "figure": name, "seeds": len(sample), **ends})
    return pd.DataFrame(rows)
