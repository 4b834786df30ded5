"""How a format lays a request out: its columns by role, as data that the readers follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Role = Literal[
    "arrival", "prompt", "output", "priority", "tenant", "hash_ids", "block_tokens", "status"
]
Kind = Literal["count", "number", "stamp", "text", "ids"]


@dataclass(frozen=True)
class Column:
    """One column: what it is to us, what the file calls it, what it holds.

    In JSON a dot in `name` goes one object deeper.
    """

    role: Role
    name: str
    kind: Kind = "count"
    required: bool = True


@dataclass(frozen=True)
class Layout:
    """The columns of one format and the facts that hold for all of its files."""

    columns: tuple[Column, ...]
    per_second: int = 1
    """Ticks of the arrival column a second (1000 where it is in milliseconds)."""
    block_tokens: int | None = None
    """Tokens a hash id covers; None where the file says it or has no hashes."""
    failed: Callable[[Mapping[str, NDArray[Any]]], NDArray[np.bool_]] | None = None
    """Which rows of a chunk the format marks as failed requests; they are left out and counted."""
    failed_record: Callable[[Mapping[str, Any]], bool] | None = None
    """The same for one JSON record, before its columns are looked for."""
    failed_means: str = ""

    def named(self, role: Role) -> str:
        """What the file calls `role`."""
        return next((c.name for c in self.columns if c.role == role), role)

    @property
    def required(self) -> tuple[str, ...]:
        """Names that a file must have."""
        return tuple(c.name for c in self.columns if c.required)


@dataclass(frozen=True)
class Options:
    """What a reader may need beyond the file: for formats without lengths, or that are drawn."""

    seed: int = 0
    limit: int | None = None
    """Requests wanted; only formats that are drawn look at it."""
    tokenizer: str | None = None
    """Path of a tokenizer.json, for formats that hold text."""
    output_tokens: int | None = None
    """Output length for prompts that have none."""


@dataclass(frozen=True)
class Chunk:
    """Some rows of a file, parsed but not yet checked against one another.

    `values` holds an array of shape [rows] for each role that the file has; hash ids are ragged:
    all ids flat, and how many belong to each row.
    """

    lines: NDArray[np.int64]
    values: dict[str, NDArray[Any]]
    ids: NDArray[np.int64] | None = None
    ids_per_row: NDArray[np.int64] | None = None

    def keep(self, rows: NDArray[np.bool_]) -> Chunk:
        """The rows where `rows` is true."""
        ids, per_row = self.ids, self.ids_per_row
        if ids is not None and per_row is not None:
            ids, per_row = ids[np.repeat(rows, per_row)], per_row[rows]
        values = {role: column[rows] for role, column in self.values.items()}
        return Chunk(self.lines[rows], values, ids, per_row)
