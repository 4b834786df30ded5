"""One policy for trouble, shared by all readers: stop with a message, or skip, count and list."""

from __future__ import annotations

import csv
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from traces.errors import TraceError

OnBadRow = Literal["error", "skip"]
SHOWN = 60
"""Characters of a bad value that a message shows."""


class CellError(ValueError):
    """A cell that cannot be used: what is wrong with it and what to do."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.fix = fix


class Trouble:
    """What happens to a bad row of one file.

    Under `error` the first one raises. Under `skip` it is left out, counted in `skipped`, and
    listed in `side_file`, which is created with the first bad row and not before.
    """

    def __init__(
        self, source: str, on_bad_row: OnBadRow, side_file: Path, *, unit: str = "line"
    ) -> None:
        if on_bad_row not in ("error", "skip"):
            raise TraceError(f"on_bad_row must be 'error' or 'skip', not {on_bad_row!r}")
        self.source = source
        self.on_bad_row = on_bad_row
        self.side_file = side_file
        self.unit = unit
        """What `line` counts: a line of the file, or a row or record where it has no lines."""
        self.skipped = 0
        self._out: IO[str] | None = None

    def bad(self, line: int, column: str, value: object, problem: str, fix: str) -> None:
        """Report the row at `line` (1-based), whose `column` holds `value`.

        Raises:
            TraceError: under `error`.
        """
        shown = shorten(value)
        if self.on_bad_row == "error":
            raise TraceError(
                f"{self.source}, {self.unit} {line}, column {column}: {shown} {problem}. {fix}, "
                "or leave such rows out with --on-bad-row skip.",
                file=self.source,
                line=line,
                column=column,
                value=shown,
                fix=fix,
            )
        self.skipped += 1
        if self._out is None:
            self._out = self.side_file.open("w", encoding="utf-8", newline="")
            csv.writer(self._out).writerow([self.unit, "column", "value", "problem"])
        csv.writer(self._out).writerow([line, column, shown, problem])

    def notes(self) -> tuple[str, ...]:
        """What the summary repeats of it."""
        if not self.skipped:
            return ()
        return (f"{self.skipped:,} bad rows skipped, listed in {self.side_file}",)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._out is not None:
            self._out.close()


def shorten(value: object) -> str:
    """A value as a message shows it: quoted where it is text, cut where it is long, printable."""
    text = repr(value) if isinstance(value, str) else str(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
