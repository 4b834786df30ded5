"""How much longer attention takes where the decodes of a step differ, from a table of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.step_rows import LEAST_ROWS, RowsError, numbers, read_table, shape_columns

UNEVEN_COLUMNS = ("n", "pc", "kp", "kv_mean", "kv_big", "t_mean_us", "t_skew_us")
"""n decodes beside a prompt chunk of `pc` tokens after `kp`: mean and largest number of keys, and
the attention time of one layer with all decodes at the mean, and as they are."""


@dataclass(frozen=True)
class UnevenRows:
    """Pairs of steps that differ in nothing but how the keys are spread over the decodes."""

    columns: dict[str, NDArray[np.int64]]
    """Of the uneven one, as in `StepRows`."""
    longer_s: NDArray[np.float64]
    """How much longer one layer's attention takes in it than in the even one; may be below 0."""
    source: str

    def even(self) -> dict[str, NDArray[np.int64]]:
        """The columns of the even one."""
        rows = self.columns["decode_rows"]
        return self.columns | {"decode_longest": self.columns["decode_computed_pairs"] // rows}


def read_uneven(path: Path, forwards: int = 1) -> UnevenRows:
    """Read a CSV or Parquet file with `UNEVEN_COLUMNS`; others are not looked at.

    Args:
        path: the table.
        forwards: forward passes that each of its times is the sum of.

    Raises:
        RowsError: unreadable, a column missing, a cell that is no number or out of range, or a
            longest row below the mean.
    """
    table = read_table(path)
    for name in UNEVEN_COLUMNS:
        if name not in table:
            raise RowsError(
                f"{path}: no column {name}; a table of uneven decodes has "
                f"{', '.join(UNEVEN_COLUMNS)}; found {', '.join(map(str, table.columns))}"
            )
    rows, chunk, context, mean, longest = (
        numbers(table, name, path, over_zero=name in ("n", "kv_mean")).astype(np.int64)
        for name in UNEVEN_COLUMNS[:5]
    )
    even, uneven = (numbers(table, name, path, over_zero=True) for name in UNEVEN_COLUMNS[5:])
    if len(table) < LEAST_ROWS:
        raise RowsError(f"{path}: {len(table)} lines; a fit needs {LEAST_ROWS} or more")
    wrong = np.flatnonzero((longest < mean) | (longest > rows * mean))
    if wrong.size:
        row = int(wrong[0])
        line = f"{path}:{row + 2}" if path.suffix != ".parquet" else f"{path}, row {row}"
        raise RowsError(
            f"{line}: kv_big is {longest[row]}, and {rows[row]} decodes of {mean[row]} keys on "
            f"average have a longest of {mean[row]} to {rows[row] * mean[row]}"
        )
    columns = shape_columns(chunk, context, rows, mean) | {"decode_longest": longest}
    return UnevenRows(columns, (uneven - even) * 1e-6 / forwards, path.name)
