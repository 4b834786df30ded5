"""The record of one run: its configuration, its tables, and the figures made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from serving.distribution import Distribution
from serving.folder import FolderError, RecordExists, ensure_free, new_folder
from serving.metrics import Folded, latencies, summarize
from serving.tables import EVENTS, KINDS, REQUESTS, STEPS

__all__ = ["Record", "RecordError", "RecordExists", "ensure_free", "make_table", "new_folder"]

TABLES = {"requests": REQUESTS, "steps": STEPS, "events": EVENTS}
"""The tables of a record, each in a file of its own, with their columns."""

_ARROW = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "object": pa.string(),
    "category": pa.dictionary(pa.int8(), pa.string()),
}


_TEXT = ("object", "category")


class RecordError(FolderError):
    """A record, or a folder of one, that is not as it should be."""


@dataclass(frozen=True, eq=False)
class Record:
    """One run, whichever backend made it; all reports, plots and comparisons are made from it.

    Raises:
        RecordError: a table without one of its columns, or with one of another type.
    """

    config: dict[str, Any]
    """What was run, with which settings and versions, as JSON has it."""
    requests: pd.DataFrame
    """A row a request, columns as `serving.tables.REQUESTS`."""
    steps: pd.DataFrame
    """A row a step, columns as `serving.tables.STEPS`."""
    events: pd.DataFrame
    """A row a change, columns as `serving.tables.EVENTS`; never one a decode."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures should know, a sentence each."""

    def __post_init__(self) -> None:
        for name, columns in TABLES.items():
            _check(getattr(self, name), columns, name)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The figures of `serving.metrics.summarize`; limits from config `slo` and `goodput`."""
        return summarize(
            self.config,
            self.requests,
            self.folded,
            slo=self.config.get("slo"),
            goodput=self.config.get("goodput"),
        )

    @cached_property
    def folded(self) -> Folded:
        """What its figures need of its steps and events."""
        return Folded.of(self.requests, self.steps, self.events)

    @cached_property
    def latencies(self) -> dict[str, Distribution]:
        """The distributions of `serving.metrics.LATENCIES` over finished requests, in s."""
        return latencies(self.requests, self.folded)

    def save(self, folder: Path | str, force: bool = False) -> Path:
        """Write the record as a folder that appears whole or not at all.

        Args:
            folder: `config.json`, `summary.json`, `requests.parquet`, `steps.parquet` and
                `events.parquet` will be in it.
            force: replace an earlier record.

        Raises:
            RecordExists: the folder is there already and `force` was not given.
            FolderError: it cannot be written, or with `force` is no record that may be replaced.
        """
        with new_folder(folder, force) as temporary:
            self.write(temporary)
        return Path(folder)

    def write(self, folder: Path) -> None:
        """Write the record's files into a folder that exists (`save` is what users want)."""
        config = {**self.config, "notes": list(self.notes)} if self.notes else self.config
        dump_json(config, folder / "config.json")
        dump_json(self.summary, folder / "summary.json")
        for name, columns in TABLES.items():
            _write_table(getattr(self, name), columns, folder / f"{name}.parquet")

    @classmethod
    def load(cls, folder: Path | str) -> Record:
        """Read a record that `save` wrote.

        Raises:
            RecordError: no such folder, a file missing or damaged, a column missing.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise RecordError(f"{folder}: no such record folder")
        config = _read_config(folder / "config.json")
        notes = tuple(str(note) for note in config.pop("notes", ()))
        tables = {
            name: _read_table(columns, folder / f"{name}.parquet")
            for name, columns in TABLES.items()
        }
        return cls(config, tables["requests"], tables["steps"], tables["events"], notes)


def make_table(columns: Mapping[str, Any], schema: Mapping[str, str]) -> pd.DataFrame:
    """A table with exactly the columns and types of `schema` (`REQUESTS`, `STEPS` or `EVENTS`).

    Args:
        columns: an array or list for each column of `schema`, all of one length; kinds of event
            by name, or by number in the order of `KINDS`.
        schema: types by column, in order.

    Raises:
        KeyError: a column is missing.
        ValueError: columns of different lengths, or a kind of event that is none of `KINDS`.
    """
    made = {name: _series(columns[name], dtype) for name, dtype in schema.items()}
    return pd.DataFrame(made, copy=False)


def _series(values: Any, dtype: str) -> pd.Series[Any]:
    """Values as a column of a table; pandas would otherwise make text a type of its own."""
    if dtype != "category":
        return pd.Series(np.asarray(values, dtype), dtype=dtype)
    kinds = pd.Index(list(KINDS))
    if np.asarray(values).dtype.kind == "i":
        return pd.Series(pd.Categorical.from_codes(values, kinds))
    codes = kinds.get_indexer(pd.Index(values))
    if (codes < 0).any():
        raise ValueError(f"{values[int(np.argmin(codes))]!r} is no kind of event")
    return pd.Series(pd.Categorical.from_codes(codes, kinds))


def dump_json(value: Mapping[str, Any], path: Path) -> None:
    """Write a JSON file for people and programs: indented, UTF-8, an undefined figure as null.

    Raises:
        RecordError: something that JSON does not have, NaN and infinity included.
    """
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{path.name}: {error}") from error
    path.write_text(text + "\n", encoding="utf-8")


def _check(table: pd.DataFrame, columns: Mapping[str, str], name: str) -> None:
    """Raise RecordError unless `table` has exactly `columns`, in this order and of these types."""
    if list(table.columns) != list(columns):
        lacks = [c for c in columns if c not in table.columns]
        more = [c for c in table.columns if c not in columns]
        raise RecordError(f"{name}: lacks columns {lacks}, has others {more}, or in another order")
    for column, dtype in columns.items():
        if str(table[column].dtype) != dtype:
            raise RecordError(f"{name}: {column} is {table[column].dtype}, not {dtype}")


def _write_table(table: pd.DataFrame, columns: Mapping[str, str], path: Path) -> None:
    """Write one table as Parquet, with the types of `columns`."""
    schema = pa.schema([(name, _ARROW[dtype]) for name, dtype in columns.items()])
    arrow = pa.Table.from_pandas(table, schema=schema, preserve_index=False)
    pq.write_table(
        arrow.replace_schema_metadata(None),
        path,
        compression="zstd",
        use_dictionary=[name for name, dtype in columns.items() if dtype in _TEXT],
        column_encoding={n: "DELTA_BINARY_PACKED" for n, t in columns.items() if t == "int64"},
    )


def _read_table(columns: Mapping[str, str], path: Path) -> pd.DataFrame:
    """Read one table back with exactly the types of `columns`."""
    try:
        arrow = pq.read_table(path)
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file; is {path.parent} a record folder?") from None
    except (pa.ArrowException, OSError) as error:
        raise RecordError(f"{path}: not a readable Parquet file ({error})") from error
    missing = [name for name in columns if name not in arrow.column_names]
    if missing:
        raise RecordError(
            f"{path}: lacks the column {', '.join(missing)}; if another version of lengthwise made "
            "it, make it again with this one"
        )
    try:
        values = {name: _values(arrow.column(name), name, dtype) for name, dtype in columns.items()}
        return make_table(values, columns)
    except (pa.ArrowException, ValueError) as error:
        raise RecordError(f"{path}: {error}") from error


def _values(column: pa.ChunkedArray, name: str, dtype: str) -> Any:
    """An Arrow column as values for `make_table`."""
    if dtype == "object":
        return column.to_pylist()
    if dtype == "category":
        return column.cast(pa.string()).to_numpy()
    if column.type != _ARROW[dtype] or (dtype == "int64" and column.null_count):
        raise ValueError(f"{name} is {column.type} with {column.null_count} nulls, not {dtype}")
    return column.to_numpy()


def _read_config(path: Path) -> dict[str, Any]:
    """Read `config.json`."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file; is {path.parent} a record folder?") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: not a readable JSON file ({error})") from error
    if not isinstance(config, dict):
        raise RecordError(f"{path}: is not a JSON object")
    return config
