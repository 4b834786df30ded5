"""Finding columns by name, and naming the nearest one where a name is missing."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from traces.errors import TraceError
from traces.layout import Column, Layout


def nearest(name: str, present: Sequence[str]) -> str:
    """A sentence that names the present name nearest to `name`, or all of them."""
    folded = {p.casefold(): p for p in present}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.5)
    if close:
        return f"The nearest there is {folded[close[0]]!r}."
    shown = ", ".join(repr(p) for p in list(present)[:12])
    return f"There is {shown}." if shown else "There is none."


def find_columns(
    header: Sequence[str], layout: Layout, source: str, *, line: int = 1
) -> dict[Column, int]:
    """Where each column of `layout` stands in `header`; absent optional ones are left out.

    Names are compared without regard to case. Other columns are ignored.

    Raises:
        TraceError: a required column is missing, or a needed one appears twice.
    """
    folded = [name.casefold() for name in header]
    place = {}
    for column in layout.columns:
        found = [i for i, name in enumerate(folded) if name == column.name.casefold()]
        if len(found) > 1:
            raise TraceError(
                f"{source}, line {line}, column {column.name}: named {len(found)} times. Keep one.",
                file=source,
                line=line,
                column=column.name,
            )
        if found:
            place[column] = found[0]
        elif column.required:
            near = nearest(column.name, [n for n in header if n])
            raise TraceError(
                f"{source}, line {line}, column {column.name}: missing. {near} "
                "Rename the column, or name another format with --format.",
                file=source,
                line=line,
                column=column.name,
                fix="Rename the column, or name another format with --format.",
            )
    return place
