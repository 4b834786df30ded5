"""BLIS TraceV2: a YAML header and CSV rows, in two files or one after the other in one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from traces.errors import TraceError
from traces.layout import Chunk, Layout, Options
from traces.source import Source
from traces.text_csv import read_csv
from traces.trouble import Trouble

_UNIT = re.compile(rb"^time_unit:\s*[\"']?(\w+)", re.MULTILINE)
_ROWS = re.compile(rb"^[^:\n]*\barrival_time_us\b", re.MULTILINE)


def is_header(data: bytes) -> bool:
    """Whether a file begins with a TraceV2 YAML header."""
    return re.search(rb"^trace_version:", data[:4096], re.MULTILINE) is not None


def read_blis(
    source: Source, layout: Layout, trouble: Trouble, options: Options
) -> Iterator[Chunk]:
    """The rows; given the YAML header, the CSV is found after it or beside it.

    Raises:
        TraceError: a unit other than microseconds, or no CSV to be found.
    """
    head = source.head()
    if not is_header(head):
        yield from read_csv(source, layout, trouble, options)
        return
    unit = _UNIT.search(head)
    if unit is not None and unit[1] not in (b"microseconds", b"us"):
        raise TraceError(
            f"{source.name}: time_unit is {unit[1].decode()}, but its columns (_us) are in "
            "microseconds. Mend the header."
        )
    rows = _ROWS.search(head)
    if rows is not None:
        skip = head[: rows.start()].count(b"\n")
        yield from read_csv(source, layout, trouble, options, skip=skip)
        return
    beside = Source.at(_beside(source.path))
    trouble.source = beside.name
    yield from read_csv(beside, layout, trouble, options)


def _beside(header: Path) -> Path:
    """The CSV that belongs to a YAML header: of the same stem, or the only one in its folder."""
    same = header.with_suffix(".csv")
    if same.is_file():
        return same
    found = sorted(header.parent.glob("*.csv"))
    if len(found) == 1:
        return found[0]
    raise TraceError(
        f"{header}: a TraceV2 header without its CSV (looked for {same.name}; "
        f"{len(found)} CSV files beside it). Give the CSV file itself."
    )
