"""Measured steps as a table of features and seconds, from anyone's file of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from serving.step import Features

KERNEL_COLUMNS = ("prefill_chunk", "prefill_ctx", "n_decode", "decode_ctx", "iter_ms")
"""A table of step shapes: at most one prompt chunk after a context, and decodes that all have the
same number of keys. Its time is the sum of kernels, without the host's share."""

LEAST_ROWS = 10


class RowsError(ValueError):
    """A table of measured steps that cannot be used."""


@dataclass(frozen=True)
class StepRows:
    """Measured steps."""

    columns: dict[str, NDArray[np.int64]]
    """One for each of `Features`, shape [rows]."""
    seconds: NDArray[np.float64]
    source: str
    facts: dict[str, Any]
    """What the file beside the table says of it (model, hardware, versions, ...)."""
    made: int = 0
    """Rows at the end that were not measured as they are, but made of a fit and a difference."""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.seconds)

    def spread(self) -> float | None:
        """How far repeats of one step lie apart (`spread`), median over steps.

        None where no step was measured twice.
        """
        table = pd.DataFrame({**self.columns, "seconds": self.seconds})
        again = table[table.duplicated(list(self.columns), keep=False)]
        if not len(again):
            return None
        return float(again.groupby(list(self.columns))["seconds"].apply(spread).median())


def spread(seconds: ArrayLike) -> float:
    """How far three repeats of a step lie apart, however many there are.

    Args:
        seconds: at least one, in the order in which they were measured.

    Returns:
        (largest − least) of each three in a row, their mean, / median of all; of two, half as much
        again as they lie apart, which three would if what parts them is normal; of one, 0.
    """
    repeats = np.asarray(seconds, np.float64)
    if len(repeats) == 2:
        return float(1.5 * np.ptp(repeats) / np.median(repeats))
    threes = sliding_window_view(repeats, min(3, len(repeats)))
    return float(np.ptp(threes, axis=1).mean() / np.median(repeats))


def read_rows(path: Path) -> StepRows:
    """Read a CSV or Parquet file of measured steps, or a record's folder.

    Two kinds of table are known by their columns: step shapes (`KERNEL_COLUMNS`), and our own,
    with the names of the step table and `seconds`, or `start_s` and `end_s`. Facts come from a
    JSON file of the same name, or from `config.json` in a record's folder.

    Raises:
        RowsError: unreadable, a column missing, a cell that is no number or out of range, fewer
            than 10 rows, or rows that all hold the same step.
    """
    table_path, facts_path = path, path.with_suffix(".json")
    if path.is_dir():
        table_path, facts_path = path / "steps.parquet", path / "config.json"
        if not table_path.is_file():
            raise RowsError(f"{path}: no steps.parquet in it; a record of --record full has one")
    table = read_table(table_path)
    if "iter_ms" in table:
        columns, seconds = _from_shapes(table, table_path)
    else:
        columns, seconds = _from_steps(table, table_path)
    if len(seconds) < LEAST_ROWS:
        raise RowsError(
            f"{table_path}: {len(seconds)} measured steps; a fit needs {LEAST_ROWS} or more"
        )
    if all((c == c[0]).all() for c in columns.values()):
        raise RowsError(f"{table_path}: all {len(seconds)} rows hold the same step; vary them")
    return StepRows(columns, seconds, path.name, _facts(facts_path))


def read_table(path: Path) -> pd.DataFrame:
    """A CSV or Parquet file as it is.

    Raises:
        RowsError: not readable.
    """
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:  # pandas' and Arrow's parser errors are ValueErrors
        raise RowsError(f"{path}: not a readable table ({error})") from None


def _facts(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RowsError(f"{path}: not a readable JSON file ({error})") from None
    return raw if isinstance(raw, dict) else {}


def numbers(
    table: pd.DataFrame, name: str, path: Path, over_zero: bool = False
) -> NDArray[np.float64]:
    """A column as numbers, each at least 0 or over 0.

    Raises:
        RowsError: a cell is none of these.
    """
    values = pd.to_numeric(table[name], errors="coerce").to_numpy(np.float64)
    good = (values > 0) if over_zero else (values >= 0)
    bad = np.flatnonzero(~(good & np.isfinite(values)))
    if bad.size:
        row = int(bad[0])
        where = f"{path}:{row + 2}" if path.suffix != ".parquet" else f"{path}, row {row}"
        cell = table[name].iloc[row]
        found = repr(cell) if isinstance(cell, str) else str(cell)
        least = "over 0" if over_zero else "of at least 0"
        raise RowsError(f"{where}: {name} is {found}; expected a number {least}")
    return values


def _from_shapes(
    table: pd.DataFrame, path: Path
) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.float64]]:
    """Step shapes: `decode_ctx` counts the keys of a decode, its own included."""
    for name in KERNEL_COLUMNS:
        if name not in table:
            raise RowsError(f"{path}: no column {name}; found {', '.join(map(str, table.columns))}")
    chunk, context, rows, keys = (
        numbers(table, name, path).astype(np.int64) for name in KERNEL_COLUMNS[:4]
    )
    columns = shape_columns(chunk, context, rows, keys)
    return columns, numbers(table, "iter_ms", path, over_zero=True) * 1e-3


def shape_columns(
    chunk: NDArray[np.int64],
    context: NDArray[np.int64],
    rows: NDArray[np.int64],
    keys: NDArray[np.int64],
) -> dict[str, NDArray[np.int64]]:
    """The features of steps with a chunk each, or none (0), and `rows` decodes of `keys` keys."""
    prompt = (chunk > 0).astype(np.int64)
    pairs = chunk * context + chunk * (chunk + 1) // 2
    return {
        "prefill_tokens": chunk,
        "decode_tokens": rows,
        "prefill_slots": chunk,
        "decode_slots": rows,
        "prefill_useful_pairs": pairs,
        "prefill_computed_pairs": pairs,
        "decode_useful_pairs": rows * keys,
        "decode_computed_pairs": rows * keys,
        "prefill_rows": prompt,
        "decode_rows": rows,
        "sampled_rows": rows + prompt,
        "prefill_kv": (context + chunk) * prompt,
        "decode_longest": np.where(rows > 0, keys, 0),
    }


def _from_steps(
    table: pd.DataFrame, path: Path
) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.float64]]:
    """Our own names; steps that computed nothing are left out.

    `prepare_s`, the host's work before each step of a profile, is part of its time: with one step
    in flight nothing else runs meanwhile.
    """
    for name in Features._fields:
        if name not in table:
            raise RowsError(
                f"{path}: no column {name}; a table of steps has either "
                f"{', '.join(KERNEL_COLUMNS)} or the names of the step table with seconds; "
                "if an older version of lengthwise made it, profile or run again; "
                f"found {', '.join(map(str, table.columns))}"
            )
    busy = numbers(table, "prefill_slots", path) + numbers(table, "decode_slots", path) > 0
    if "seconds" in table:
        seconds = numbers(table, "seconds", path, over_zero=True)
        if "prepare_s" in table:
            seconds = seconds + numbers(table, "prepare_s", path)
    elif "start_s" in table and "end_s" in table:
        seconds = table["end_s"].to_numpy(np.float64) - table["start_s"].to_numpy(np.float64)
        if (seconds[busy] <= 0).any():
            row = int(np.flatnonzero(busy & (seconds <= 0))[0])
            raise RowsError(f"{path}, row {row}: end_s is not after start_s")
    else:
        raise RowsError(f"{path}: no column seconds, nor start_s and end_s")
    columns = {name: numbers(table, name, path).astype(np.int64)[busy] for name in Features._fields}
    return columns, seconds[busy]
