"""What a reader raises: an error the user can act on."""

from __future__ import annotations


class TraceError(ValueError):
    """A trace that cannot be used; the message names file, line, column, value and the remedy.

    The same facts are attributes (None where one does not apply), for programs.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: str | None = None,
        value: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message)
        self.file = file
        self.line = line
        self.column = column
        self.value = value
        self.fix = fix
