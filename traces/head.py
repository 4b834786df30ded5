"""What the beginning of a file shows, and the rules by which a format is recognised from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from traces.layout import Layout
from traces.source import Source
from traces.text_csv import header_of
from traces.text_jsonl import has

_KEY = re.compile(rb'"([A-Za-z_]\w{0,60})"\s*:')


@dataclass(frozen=True)
class Head:
    """The first bytes of a file, looked at once for all formats."""

    name: str
    data: bytes
    header: tuple[str, ...] = ()
    """The column names, where it looks like CSV."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """The JSON objects of the first lines, where they are objects."""
    mentioned: frozenset[str] = frozenset()
    """Names that stand before a colon, where it looks like JSON."""

    @classmethod
    def of(cls, source: Source) -> Head:
        """Look at the beginning of a file."""
        data = source.head()
        name = source.path.name
        if data.lstrip()[:1] not in (b"{", b"["):
            return cls(name, data, header=header_of(data.split(b"\n", 1)[0][:65536]))
        mentioned = frozenset(key.decode() for key in _KEY.findall(data))
        return cls(name, data, records=_records(data), mentioned=mentioned)

    @property
    def found(self) -> str:
        """What there is, for a message."""
        if self.records:
            return f"a JSON object with {', '.join(map(repr, list(self.records[0])[:8]))}"
        if self.mentioned:
            return f"JSON with {', '.join(map(repr, sorted(self.mentioned)[:8]))}"
        if any(self.header):
            return f"a first line with {', '.join(repr(n[:40]) for n in self.header[:8])}"
        return "no header or JSON object that can be read"


def _records(data: bytes) -> list[dict[str, Any]]:
    """The objects of the first lines, up to the first that is none."""
    records = []
    for line in data.lstrip().split(b"\n")[:50]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(record, dict):
            break
        records.append(record)
    return records


Sniff = Callable[[Head, Layout], str | None]
"""The reason why a file is of a format, or None."""


def by_header(head: Head, layout: Layout) -> str | None:
    """CSV whose header has all the required names."""
    names = {name.casefold() for name in head.header}
    if all(name.casefold() in names for name in layout.required):
        return f"its header has {', '.join(layout.required)}"
    return None


def by_keys(head: Head, layout: Layout) -> str | None:
    """JSONL whose first object has all the required names."""
    return _has_all(head, layout.required)


def by_keys_and(*more: str) -> Sniff:
    """JSONL whose first object has the required names and `more`."""
    return lambda head, layout: _has_all(head, (*layout.required, *more))


def by_key(*names: str) -> Sniff:
    """JSONL whose first object has `names`."""
    return lambda head, layout: _has_all(head, names)


def _has_all(head: Head, names: tuple[str, ...]) -> str | None:
    """A first line longer than the head shows its names, but not where they stand."""
    if head.records:
        found = all(has(head.records[0], name) for name in names)
    else:
        line = b"\n" not in head.data
        found = line and all(name.split(".")[-1] in head.mentioned for name in names)
    return f"its first line has {', '.join(names)}" if found else None


def by_blocks(size: int, other: int) -> Sniff:
    """As `by_keys`, where the hash ids fit blocks of `size` tokens and not of `other`."""

    def sniff(head: Head, layout: Layout) -> str | None:
        reason = by_keys(head, layout)
        if reason and _fits(head, layout, size) and not _fits(head, layout, other):
            return f"{reason}, and its hash_ids fit {size}-token blocks"
        return None

    return sniff


def _fits(head: Head, layout: Layout, size: int) -> bool:
    """Whether the first records have a hash id for each block of `size` tokens."""
    prompt, ids = layout.named("prompt"), layout.named("hash_ids")
    pairs = [(r.get(prompt), r.get(ids)) for r in head.records]
    return any(i for _, i in pairs) and all(
        isinstance(p, int) and isinstance(i, list) and len(i) in (p // size, -(-p // size))
        for p, i in pairs
    )


def by_mention(*names: str) -> Sniff:
    """A JSON document in whose beginning `names` stand before a colon."""

    def sniff(head: Head, layout: Layout) -> str | None:
        return f"it has {', '.join(names)}" if head.mentioned.issuperset(names) else None

    return sniff


def by_magic(magic: bytes) -> Sniff:
    """A file that begins with `magic`."""

    def sniff(head: Head, layout: Layout) -> str | None:
        return f"it begins with {magic.decode()}" if head.data.startswith(magic) else None

    return sniff


def by_name(pattern: str) -> Sniff:
    """A file whose name matches `pattern`."""
    regex = re.compile(pattern)

    def sniff(head: Head, layout: Layout) -> str | None:
        return "its name says so" if regex.fullmatch(head.name) else None

    return sniff
