"""The formats that can be read, as one table: name, columns, how recognised, how read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from traces.errors import TraceError
from traces.layout import Chunk, Column, Layout
from traces.parquet import read_parquet
from traces.source import Source
from traces.text_csv import header_of, read_csv
from traces.text_jsonl import has, read_jsonl
from traces.trouble import Trouble

Reader = Callable[[Source, Layout, Trouble], Iterator[Chunk]]


@dataclass(frozen=True)
class Head:
    """What the beginning of a file shows, for choosing a format."""

    data: bytes
    header: tuple[str, ...] = ()
    """The column names, where it looks like CSV."""
    first: dict[str, Any] = field(default_factory=dict)
    """The first line's JSON object, where it is one."""

    @classmethod
    def of(cls, data: bytes) -> Head:
        """Look at the first bytes of a file."""
        if data[:4] == b"PAR1":
            return cls(data)
        line = data.lstrip().split(b"\n", 1)[0]
        if line[:1] in (b"{", b"["):
            try:
                first = json.loads(line)
            except (ValueError, RecursionError):
                first = None
            return cls(data, first=first if isinstance(first, dict) else {})
        return cls(data, header=header_of(data.split(b"\n", 1)[0]))


@dataclass(frozen=True)
class Format:
    """One format: its name, its columns, how it is recognised and read."""

    name: str
    about: str
    layout: Layout
    reader: Reader
    sniff: Callable[[Head, Layout], str | None]
    """The reason why a file is of this format, or None."""


def by_header(head: Head, layout: Layout) -> str | None:
    """CSV whose header has all the required names."""
    names = {name.casefold() for name in head.header}
    if all(name.casefold() in names for name in layout.required):
        return f"its header has {', '.join(layout.required)}"
    return None


def by_keys(head: Head, layout: Layout) -> str | None:
    """JSONL whose first object has all the required names."""
    if head.first and all(has(head.first, name) for name in layout.required):
        return f"its first line has {', '.join(layout.required)}"
    return None


def by_magic(head: Head, layout: Layout) -> str | None:
    """Parquet."""
    return "it begins with PAR1" if head.data[:4] == b"PAR1" else None


NATIVE = Layout(
    (
        Column("arrival", "arrival_s", "number"),
        Column("prompt", "prompt_tokens"),
        Column("output", "output_tokens"),
        Column("priority", "priority", required=False),
        Column("tenant", "tenant", "text", required=False),
        Column("hash_ids", "hash_ids", "ids", required=False),
        Column("block_tokens", "block_tokens", required=False),
    )
)
AZURE = Layout(
    (
        Column("arrival", "TIMESTAMP", "stamp"),
        Column("prompt", "ContextTokens"),
        Column("output", "GeneratedTokens"),
    ),
    per_second=1_000_000_000,
)
MOONCAKE = Layout(
    (
        Column("arrival", "timestamp", "number"),
        Column("prompt", "input_length"),
        Column("output", "output_length"),
        Column("hash_ids", "hash_ids", "ids", required=False),
    ),
    per_second=1000,
    block_tokens=512,
)

FORMATS: tuple[Format, ...] = (
    Format("csv", "our own columns, CSV", NATIVE, read_csv, by_header),
    Format("jsonl", "our own columns, JSONL", NATIVE, read_jsonl, by_keys),
    Format("parquet", "our own columns, Parquet", NATIVE, read_parquet, by_magic),
    Format("azure", "Azure LLM inference traces 2023-2025", AZURE, read_csv, by_header),
    Format("mooncake", "Mooncake JSONL, ms and 512-token blocks", MOONCAKE, read_jsonl, by_keys),
)
"""In the order in which they are tried."""

BY_NAME = {f.name: f for f in FORMATS}


def choose(source: Source) -> tuple[Format, str]:
    """The format of a file, from its content, and the reason.

    Raises:
        TraceError: nothing fits; the message says what was found.
    """
    head = Head.of(source.head())
    for candidate in FORMATS:
        reason = candidate.sniff(head, candidate.layout)
        if reason:
            return candidate, reason
    found = "no header or JSON object that can be read"
    if head.header:
        found = f"a header with {', '.join(repr(n) for n in head.header[:8])}"
    elif head.first:
        found = f"a JSON object with {', '.join(repr(n) for n in list(head.first)[:8])}"
    elif head.data.lstrip()[:1] in (b"{", b"["):
        found = "JSON whose first line is not an object"
    raise TraceError(
        f"{source.name}: no known trace format; it has {found}. Name one with --format "
        f"({', '.join(BY_NAME)}), or rename the columns to {', '.join(NATIVE.required)}."
    )
