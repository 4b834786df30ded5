"""Says which name was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence for an error: the nearest known name, and all of them."""
    names = list(known)
    close = get_close_matches(name, names, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"unknown; {meant}known: {', '.join(names)}"
