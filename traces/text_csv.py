"""CSV: Arrow parses whole blocks; a block that it refuses is read again line by line to say why."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces import cells
from traces.gather import Gathered
from traces.layout import Chunk, Column, Kind, Layout, Options
from traces.names import find_columns
from traces.source import Source
from traces.trouble import CellError, Trouble

Header = tuple[str, ...]
WHOLE_LINE = "(whole line)"
"""What stands for the column where the line itself is bad."""


def header_of(line: bytes) -> Header:
    """The column names of a header line."""
    text = line.decode("utf-8", "backslashreplace").strip("\r\n")
    try:
        return tuple(name.strip() for name in next(csv.reader([text]), []))
    except csv.Error:
        return ()


def read_csv(
    source: Source, layout: Layout, trouble: Trouble, options: Options, *, skip: int = 0
) -> Iterator[Chunk]:
    """The rows of a CSV file with a header line, in chunks; the header follows `skip` lines.

    Raises:
        TraceError: a missing column, a bad row under `error`, or a damaged file.
    """
    header: Header = ()
    place: dict[Column, int] = {}
    zones = Zones()
    for first, block in source.blocks():
        if not header:
            for _ in range(skip):
                block, first = block.partition(b"\n")[2], first + 1
            line, _, block = block.partition(b"\n")
            header = header_of(line)
            place = find_columns(header, layout, source.name, line=first)
            first += 1
        if block:
            chunk = _fast(block, first, len(header), place, zones)
            yield chunk or _slow(block, first, header, place, zones, trouble)


class Zones:
    """Whether the timestamps of a file name their zone: all do, or none."""

    zoned: bool | None = None

    def check(self, zoned: bool) -> None:
        """Note one more timestamp.

        Raises:
            CellError: it differs from those before it.
        """
        if self.zoned is None:
            self.zoned = zoned
        if zoned != self.zoned:
            other = "without a zone" if self.zoned else "with a zone"
            raise CellError(
                f"differs from the timestamps before it ({'a' if zoned else 'no'} zone)",
                f"Write all timestamps {'with a zone' if other == 'without a zone' else 'without'}",
            )


def _fast(
    block: bytes, first: int, width: int, place: dict[Column, int], zones: Zones
) -> Chunk | None:
    """The block as Arrow reads it, or None where any of it needs a closer look."""
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    # Arrow takes 0x10 for 16 and lets NUL bytes stand in text; neither is a number to us.
    if b"\0" in block or b"0x" in block or b"0X" in block or any(c.kind == "ids" for c in place):
        return None
    rows = block.count(b"\n") + (not block.endswith(b"\n"))
    types = {"count": pa.int64(), "number": pa.float64(), "stamp": pa.string(), "text": pa.string()}
    labels = {column: f"c{index}" for column, index in place.items()}
    try:
        table = arrow_csv.read_csv(
            pa.py_buffer(block),
            read_options=arrow_csv.ReadOptions(
                column_names=[f"c{i}" for i in range(width)], use_threads=False, block_size=1 << 30
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=list(labels.values()),
                column_types={label: types[column.kind] for column, label in labels.items()},
                null_values=[],
                strings_can_be_null=False,
            ),
        )
        if table.num_rows != rows:
            return None
        values: dict[str, NDArray[Any]] = {
            column.role: _array(table.column(label), column.kind, zones)
            for column, label in labels.items()
        }
    except (pa.ArrowException, CellError):
        return None
    return Chunk(np.arange(first, first + rows, dtype=np.int64), values)


def _array(column: Any, kind: Kind, zones: Zones) -> NDArray[Any]:
    """An Arrow column as NumPy; timestamps as nanoseconds since 1970."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind == "stamp":
        # A zone must be in the text where it is in the type, and must not where it is not.
        zoned = _names_zone(column[0].as_py()) if zones.zoned is None else zones.zoned
        column = pc.cast(column, pa.timestamp("ns", "UTC" if zoned else None))
        zones.check(zoned)
        column = pc.cast(column, pa.int64())
    if kind == "text":
        return np.array(column.to_pylist(), object)
    # not `to_numpy`, which imports pandas; that takes longer than reading most traces
    array: NDArray[Any] = np.from_dlpack(column.combine_chunks())
    if (kind == "number" and not np.isfinite(array).all()) or (kind == "stamp" and array.min() < 0):
        raise CellError("needs a closer look", "Read it cell by cell")
    return array


def _names_zone(text: str) -> bool:
    return text.endswith("Z") or "+" in text or text.count("-") > 2


def _slow(
    block: bytes,
    first: int,
    header: Header,
    place: dict[Column, int],
    zones: Zones,
    trouble: Trouble,
) -> Chunk:
    """The block cell by cell; bad rows go to `trouble`."""
    gathered = Gathered(tuple(place))
    for line, raw in enumerate(block.split(b"\n"), first):
        if not raw.strip():
            continue
        row = _cells(raw, line, header, trouble)
        if row is None:
            continue
        parsed: list[Any] = []
        for column, index in place.items():
            try:
                parsed.append(_cell(row[index], column, zones))
            except CellError as bad:
                trouble.bad(line, column.name, row[index], bad.problem, bad.fix)
                break
        else:
            gathered.add(line, parsed)
    return gathered.chunk()


def _cells(raw: bytes, line: int, header: Header, trouble: Trouble) -> list[str] | None:
    """One line cut into cells, or None where it is bad."""
    text = raw.rstrip(b"\r").decode("utf-8", "surrogateescape")
    try:
        row = next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        trouble.bad(line, WHOLE_LINE, text, f"is not CSV ({error})", "Mend the line")
        return None
    if len(row) != len(header):
        problem = f"has {len(row)} cells where the header names {len(header)}"
        trouble.bad(line, WHOLE_LINE, text, problem, "Mend the line")
        return None
    return row


def _cell(text: str, column: Column, zones: Zones) -> Any:
    """One cell as what its column holds."""
    match column.kind:
        case "count":
            return cells.count(text)
        case "number":
            return cells.number(text)
        case "ids":
            return cells.ids(text)
        case "stamp":
            nanoseconds, zoned = cells.stamp(text)
            zones.check(zoned)
            return nanoseconds
        case "text":
            return cells.clean(text)
