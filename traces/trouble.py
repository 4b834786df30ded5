"""One policy for trouble, shared by all readers: stop with a message, or skip, count and list."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from traces.errors import TraceError

OnBadRow = Literal["error", "skip"]
SHOWN = 60
"""Characters of a bad value that a message shows."""
EXAMPLES = 20
"""Bad rows that are kept to be shown."""


class CellError(ValueError):
    """A cell that cannot be used: what is wrong with it and what to do."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.fix = fix


class Trouble:
    """What happens to a bad row of one file.

    Under `error` the first one raises. Under `skip` it is left out, counted in `skipped`, and
    listed in `side_file` (if any), which is created with the first bad row and not before.
    Requests that the format itself marks as failed are no trouble: they are left out and counted.
    """

    def __init__(
        self,
        source: str,
        on_bad_row: OnBadRow = "error",
        side_file: Path | None = None,
        *,
        unit: str = "line",
    ) -> None:
        if on_bad_row not in ("error", "skip"):
            raise TraceError(f"on_bad_row must be 'error' or 'skip', not {on_bad_row!r}")
        self.source = source
        self.on_bad_row = on_bad_row
        self.side_file = side_file
        self.unit = unit
        """What `line` counts: a line of the file, or a row or record where it has no lines."""
        self.skipped = 0
        self.examples: list[str] = []
        self._left_out: Counter[str] = Counter()
        self._out: IO[str] | None = None

    def bad(self, line: int, column: str, value: object, problem: str, fix: str) -> None:
        """Report the row at `line` (1-based), whose `column` holds `value`.

        Raises:
            TraceError: under `error`.
        """
        shown = shorten(value)
        where = f"{self.source}, {self.unit} {line}, column {column}: {shown} {problem}."
        if self.on_bad_row == "error":
            raise TraceError(
                f"{where} {fix}, or leave such rows out with --on-bad-row skip.",
                file=self.source,
                line=line,
                column=column,
                value=shown,
                fix=fix,
            )
        self.skipped += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{where} {fix}.")
        if self.side_file is not None:
            self._list(self.side_file, [line, column, shown, problem])

    def left_out(self, why: str, requests: int = 1) -> None:
        """Count requests that the format marks as failed, by reason."""
        self._left_out[why] += requests

    def notes(self) -> tuple[str, ...]:
        """What the summary repeats of it."""
        notes = tuple(
            f"{counted(n, 'request')} left out: {why}" for why, n in self._left_out.items()
        )
        if self.skipped:
            listed = "" if self.side_file is None else f", listed in {self.side_file}"
            notes += (f"{counted(self.skipped, 'bad row')} skipped{listed}",)
        return notes

    def _list(self, side_file: Path, row: list[object]) -> None:
        """Add a row to the side file."""
        if self._out is None:
            try:
                self._out = side_file.open("w", encoding="utf-8", newline="")
            except OSError as error:
                raise TraceError(
                    f"{side_file}: bad rows cannot be listed there ({error.strerror}). "
                    "Name another file with --bad-rows."
                ) from error
            csv.writer(self._out).writerow([self.unit, "column", "value", "problem"])
        csv.writer(self._out).writerow(row)

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
    text = repr(value) if isinstance(value, str) else "null" if value is None else str(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def counted(n: int, noun: str) -> str:
    """A number and its noun: `1 request`, `2 requests`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
