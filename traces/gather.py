"""Rows parsed one by one, turned into a chunk of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.layout import Chunk, Column

CHUNK_ROWS = 50_000
"""Rows that a reader of single rows gathers before it makes a chunk."""

_TYPES = {"count": np.int64, "number": np.float64, "stamp": np.int64, "text": np.object_}


class Gathered:
    """Rows parsed one by one, until they become a chunk."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = columns
        self.lines: list[int] = []
        self._rows: list[list[Any]] = []

    def __len__(self) -> int:
        return len(self.lines)

    def add(self, line: int, row: list[Any]) -> None:
        """One row: its line and a value a column."""
        self.lines.append(line)
        self._rows.append(row)

    def chunk(self) -> Chunk:
        """The rows so far."""
        values: dict[str, NDArray[Any]] = {}
        ids = per_row = None
        for index, column in enumerate(self.columns):
            cells_ = [row[index] for row in self._rows]
            if column.kind == "ids":
                per_row = np.array([len(c) for c in cells_], np.int64)
                ids = np.array([i for c in cells_ for i in c], np.int64)
            else:
                values[column.role] = np.array(cells_, _TYPES[column.kind])
        return Chunk(np.array(self.lines, np.int64), values, ids, per_row)
