"""JSON with one request a line, and records inside larger JSON documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from traces import cells
from traces.errors import TraceError
from traces.gather import CHUNK_ROWS, Gathered
from traces.layout import Chunk, Column, Layout, Options
from traces.names import nearest
from traces.source import Source
from traces.text_csv import WHOLE_LINE
from traces.trouble import CellError, Trouble


class Missing:
    """What `get` returns for a name that is not there; false, as absent things are."""

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return "nothing"


MISSING = Missing()
Record = Mapping[str, Any]


def read_jsonl(
    source: Source, layout: Layout, trouble: Trouble, options: Options
) -> Iterator[Chunk]:
    """The rows of a JSONL file, in chunks.

    Optional columns count as present when the first good line has them.

    Raises:
        TraceError: a bad row under `error`, or a damaged file.
    """
    return read_records(objects(source, trouble), layout, trouble)


def objects(source: Source, trouble: Trouble) -> Iterator[tuple[int, Record]]:
    """The JSON object of each line, with its line."""
    for line, raw in source.lines():
        try:
            record = parse(raw)
        except CellError as bad:
            shown = raw.decode("utf-8", "backslashreplace")
            trouble.bad(line, WHOLE_LINE, shown, bad.problem, bad.fix)
            continue
        if isinstance(record, dict):
            yield line, record
        else:
            fix = 'Write {"name": value, ...} on each line'
            trouble.bad(line, WHOLE_LINE, record, "is not a JSON object", fix)


def read_records(
    records: Iterable[tuple[int, Record]], layout: Layout, trouble: Trouble
) -> Iterator[Chunk]:
    """Numbered JSON objects as chunks of columns."""
    gathered: Gathered | None = None
    columns: tuple[Column, ...] = ()
    for line, record in records:
        if layout.failed_record is not None and layout.failed_record(record):
            trouble.left_out(layout.failed_means)
            continue
        if gathered is None:
            columns = tuple(c for c in layout.columns if c.required or has(record, c.name))
            gathered = Gathered(columns)
        row: list[Any] = []
        for column in columns:
            value = get(record, column.name)
            try:
                row.append(_cell(value, column, record))
            except CellError as bad:
                trouble.bad(line, column.name, value, bad.problem, bad.fix)
                break
        else:
            gathered.add(line, row)
            if len(gathered) == CHUNK_ROWS:
                yield gathered.chunk()
                gathered = Gathered(columns)
    if gathered is not None:
        yield gathered.chunk()


def parse(raw: bytes) -> Any:
    """One JSON value.

    Raises:
        CellError: not JSON, not UTF-8, or nested too deeply.
    """
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        raise CellError(f"is not JSON ({error.msg} at column {error.colno})", "Mend it") from error
    except UnicodeDecodeError as error:
        raise CellError("is not UTF-8 text", "Save the file as UTF-8") from error
    except RecursionError as error:
        raise CellError("is nested too deeply", "Mend it") from error
    except ValueError as error:
        raise CellError(f"is not JSON that can be read ({error})", "Mend it") from error


def parse_document(source: Source, most: int) -> Any:
    """A whole file that is one JSON document of at most `most` bytes.

    Raises:
        TraceError: not JSON, or too large.
    """
    raw = source.whole(most)
    try:
        return parse(raw)
    except CellError as bad:
        raise TraceError(f"{source.name}: {bad.problem}. {bad.fix}.", file=source.name) from bad


def get(record: Record, name: str) -> Any:
    """The value at `name`, where a dot goes one object deeper; MISSING where there is none."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return MISSING
        value = value[part]
    return value


def has(record: Record, name: str) -> bool:
    """Whether `record` has `name`."""
    return get(record, name) is not MISSING


def _cell(value: Any, column: Column, record: Record) -> Any:
    """One value as what its column holds."""
    if value is MISSING:
        near = nearest(column.name, list(record))
        raise CellError("is there: the name is missing", f"{near} Add {column.name}")
    match column.kind:
        case "count":
            return cells.json_count(value)
        case "number":
            return cells.json_number(value)
        case "ids":
            return cells.json_ids(value)
        case "text":
            return cells.json_text(value)
        case "stamp":
            return cells.stamp(cells.json_text(value))[0]
