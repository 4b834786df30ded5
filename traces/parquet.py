"""Parquet, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces import cells
from traces.errors import TraceError
from traces.gather import Gathered
from traces.layout import Chunk, Column, Layout, Options
from traces.names import find_columns
from traces.source import MAX_RATIO, Source
from traces.trouble import CellError, Trouble

BATCH = 1 << 18
"""Rows read at a time."""
FREE_ROWS = 20_000_000
"""Rows that any file may hold; more only where they take up a fair part of their size in memory."""


def read_parquet(
    source: Source, layout: Layout, trouble: Trouble, options: Options
) -> Iterator[Chunk]:
    """The rows of a Parquet file, in chunks.

    Raises:
        TraceError: a missing column, a bad row under `error`, a damaged file, or a bomb.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if source.compression:
        raise TraceError(f"{source.name}: a compressed Parquet file. Decompress it first.")
    trouble.unit = "row"
    try:
        with pq.ParquetFile(source.path, memory_map=False) as file:
            place = find_columns(file.schema_arrow.names, layout, source.name)
            _refuse_bomb(source, file.metadata.num_rows, len(place))
            names = [file.schema_arrow.names[index] for index in place.values()]
            first = 1
            for batch in file.iter_batches(BATCH, columns=names, use_threads=False):
                named = dict(zip(place, names, strict=True))
                yield _chunk(batch, named, first, trouble)
                first += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(
            f"{source.name}: not a Parquet file that can be read ({text}). Write it again."
        ) from error


def _refuse_bomb(source: Source, rows: int, columns: int) -> None:
    if rows > max(FREE_ROWS, MAX_RATIO * source.size // (8 * columns)):
        raise TraceError(
            f"{source.name}: {source.size:,} bytes that claim {rows:,} rows; refused as a "
            "decompression bomb. Split the file if it is a real trace."
        )


def _chunk(batch: Any, names: dict[Column, str], first: int, trouble: Trouble) -> Chunk:
    """A batch as a chunk: by whole columns, or row by row where a value does not fit its column."""
    values: dict[str, NDArray[Any]] = {}
    ids = per_row = None
    for column, name in names.items():
        array = batch.column(batch.schema.get_field_index(name))
        whole = None if array.null_count else _array(array, column)
        if whole is None:
            return _slow(batch, names, first, trouble)
        if isinstance(whole, tuple):
            ids, per_row = whole
        else:
            values[column.role] = whole
    return Chunk(np.arange(first, first + batch.num_rows, dtype=np.int64), values, ids, per_row)


def _array(array: Any, column: Column) -> Any:
    """An Arrow array as NumPy (ids as flat ids and counts), or None where it does not convert."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    try:
        if column.kind == "ids":
            if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
                return None
            flat = array.flatten()
            if flat.null_count:
                return None
            return (
                pc.cast(flat, pa.int64()).to_numpy(zero_copy_only=False),
                pc.cast(pc.list_value_length(array), pa.int64()).to_numpy(zero_copy_only=False),
            )
        if column.kind == "text":
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                return None
            return array.to_numpy(zero_copy_only=False).astype(object)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            return None
        wanted = pa.float64() if column.kind == "number" else pa.int64()
        return pc.cast(array, wanted).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None


def _slow(batch: Any, names: dict[Column, str], first: int, trouble: Trouble) -> Chunk:
    """A batch row by row; bad rows go to `trouble`."""
    gathered = Gathered(tuple(names))
    columns = {c: batch.column(batch.schema.get_field_index(n)) for c, n in names.items()}
    for row in range(batch.num_rows):
        parsed: list[Any] = []
        for column, array in columns.items():
            value = array[row].as_py()
            try:
                parsed.append(_cell(value, column))
            except CellError as bad:
                trouble.bad(first + row, column.name, value, bad.problem, bad.fix)
                break
        else:
            gathered.add(first + row, parsed)
    return gathered.chunk()


def _cell(value: Any, column: Column) -> Any:
    match column.kind:
        case "count" | "stamp":
            return cells.json_count(value)
        case "number":
            return cells.json_number(value)
        case "ids":
            return cells.json_ids(value)
        case "text":
            return cells.json_text(value)
