"""Tables of a record as Parquet files: written row group by row group, and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from serving.folder import FolderError
from serving.tables import KINDS

if TYPE_CHECKING:
    import pandas as pd

ROWS = 1 << 16
"""Rows of a row group; the last one has fewer."""

_ARROW = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "object": pa.string(),
    "category": pa.dictionary(pa.int8(), pa.string()),
}

_TEXT = ("object", "category")
_PACKING = {"int64": "DELTA_BINARY_PACKED", "float64": "BYTE_STREAM_SPLIT"}


class RecordError(FolderError):
    """A record, or a folder of one, that is not as it should be."""


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """The Arrow types of a table of `serving.tables`."""
    return pa.schema(
        [pa.field(n, _ARROW[dtype], nullable=dtype != "int64") for n, dtype in columns.items()]
    )


def batch_of(values: Mapping[str, NDArray[Any]], columns: Mapping[str, str]) -> pa.RecordBatch:
    """Rows of a table: an array a column, kinds of event as numbers; NaN becomes null."""
    made = []
    for name, dtype in columns.items():
        if dtype == "category":
            kinds = _numbers(values[name].astype(np.int8), pa.int8())
            made.append(pa.DictionaryArray.from_arrays(kinds, _texts(list(KINDS))))
        elif dtype == "object":
            made.append(_texts(values[name]))
        else:
            made.append(_numbers(values[name].astype(dtype, copy=False), _ARROW[dtype]))
    return pa.RecordBatch.from_arrays(made, schema=schema_of(columns))


# From their bytes: `pa.array` imports pandas, which takes longer than a short run.


def _numbers(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Numbers of this kind as they lie in memory; NaN becomes null."""
    present = None
    if values.dtype.kind == "f" and (missing := np.isnan(values)).any():
        present = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(
        kind, len(values), [present, pa.py_buffer(np.ascontiguousarray(values))]
    )


def _texts(values: Sequence[str | None] | NDArray[Any]) -> pa.Array:
    """Texts one behind the other; None becomes null."""
    texts = [b"" if text is None else text.encode() for text in values]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    present = np.packbits([text is not None for text in values], bitorder="little")
    parts = (ends, b"".join(texts), present)
    return pa.StringArray.from_buffers(len(texts), *map(pa.py_buffer, parts))


class RowGroups:
    """A Parquet file that grows by row groups of `ROWS` rows, whatever pieces the rows come in."""

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        """Begin the file.

        Args:
            path: where; not there yet.
            columns: types by column, as in `serving.tables`.
        """
        self._writer = pq.ParquetWriter(
            path,
            schema_of(columns),
            compression="zstd",
            write_statistics=False,  # a tenth of the time, and nobody looks rows up by them
            use_dictionary=[name for name, dtype in columns.items() if dtype in _TEXT],
            column_encoding={n: _PACKING[t] for n, t in columns.items() if t in _PACKING},
        )
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows behind the others."""
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        self._waiting.append(rows)
        self._rows += rows.num_rows
        if self._rows >= ROWS:
            self._write(self._rows - self._rows % ROWS)

    def close(self) -> None:
        """Write what is left, and end the file."""
        if self._rows:
            self._write(self._rows)
        self._writer.close()

    def _write(self, count: int) -> None:
        """Write the first `count` rows that wait."""
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._rows = [rows.slice(count)], self._rows - count
        self._writer.write_table(rows.slice(0, count).combine_chunks(), row_group_size=ROWS)


def write_table(table: pd.DataFrame, columns: Mapping[str, str], path: Path) -> None:
    """Write a table with the types of `columns`."""
    schema, file = schema_of(columns), RowGroups(path, columns)
    for begin in range(0, len(table), ROWS):
        part = table.iloc[begin : begin + ROWS]
        rows = pa.Table.from_pandas(part, schema=schema, preserve_index=False)
        file.add(rows.replace_schema_metadata(None))
    file.close()


def write_arrays(arrays: Arrays, path: Path) -> None:
    """Write a table that nobody has looked at yet."""
    file = RowGroups(path, arrays.columns)
    for begin in range(0, len(arrays), ROWS):
        rows = {name: values[begin : begin + ROWS] for name, values in arrays.values.items()}
        file.add(batch_of(rows, arrays.columns))
    file.close()


def make_table(columns: Mapping[str, Any], schema: Mapping[str, str]) -> pd.DataFrame:
    """A table with exactly the columns and types of `schema` (`REQUESTS`, `STEPS` or `EVENTS`).

    Args:
        columns: an array or list for each column of `schema`, all of one length; kinds of event
            by name, or by number in the order of `KINDS`. The table takes arrays over.
        schema: types by column, in order.

    Raises:
        KeyError: a column is missing.
        ValueError: columns of different lengths, or a kind of event that is none of `KINDS`.
    """
    import pandas as pd  # which takes longer to import than a short run takes

    made = {name: _series(columns[name], dtype) for name, dtype in schema.items()}
    return pd.DataFrame(made, copy=False)


def _series(values: Any, dtype: str) -> pd.Series[Any]:
    """Values as a column of a table; pandas would otherwise make text a type of its own."""
    import pandas as pd

    if dtype != "category":
        array = np.asarray(values, dtype)
        return pd.Series(array, dtype=dtype, copy=not array.flags.writeable)
    kinds = pd.Index(list(KINDS))
    if np.asarray(values).dtype.kind == "i":
        return pd.Series(pd.Categorical.from_codes(values, kinds))
    codes = kinds.get_indexer(pd.Index(values))
    if (codes < 0).any():
        raise ValueError(f"{values[int(np.argmin(codes))]!r} is no kind of event")
    return pd.Series(pd.Categorical.from_codes(codes, kinds))


@dataclass(frozen=True)
class Arrays:
    """A table in memory that becomes one of pandas' when it is asked for."""

    values: Mapping[str, NDArray[Any]]
    """By column; kinds of event as numbers."""
    columns: Mapping[str, str]
    """Types by column."""

    def __len__(self) -> int:
        """Rows."""
        return len(next(iter(self.values.values())))

    def read(self) -> pd.DataFrame:
        """The table; it takes the arrays over."""
        return make_table(self.values, self.columns)


@dataclass(frozen=True)
class Stored:
    """A table that lies in a Parquet file, and is read when it is asked for."""

    path: Path
    columns: Mapping[str, str]
    """Types by column."""

    def read(self) -> pd.DataFrame:
        """The table, with exactly the types of `columns`.

        Raises:
            RecordError: no such file, a file that cannot be read, a column missing.
        """
        try:
            return make_table(self.values(tuple(self.columns)), self.columns)
        except ValueError as error:
            raise RecordError(f"{self.path}: {error}") from error

    def values(self, names: Sequence[str]) -> dict[str, Any]:
        """Some of its columns, as `make_table` takes them; the others are not read.

        Raises:
            RecordError: as `read`.
        """
        path = self.path
        try:
            with pq.ParquetFile(path) as file:
                arrow = file.read(list(names))
        except FileNotFoundError:
            raise RecordError(f"{path}: no such file; is {path.parent} a record folder?") from None
        except (pa.ArrowException, OSError) as error:
            raise RecordError(f"{path}: not a readable Parquet file ({error})") from error
        missing = [name for name in names if name not in arrow.column_names]
        if missing:
            raise RecordError(
                f"{path}: lacks the column {', '.join(missing)}; if another version of lengthwise "
                "made it, make it again with this one"
            )
        try:
            return {name: _values(arrow.column(name), name, self.columns[name]) for name in names}
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
