"""The recordings of the engines' own schedulers, parsed once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from policies.conform import Recording, read

FOLDER = Path(__file__).resolve().parent.parent / "recordings"


def names(engine: str) -> list[str]:
    """The recordings of an engine (`vllm`, `sglang`), by name."""
    return sorted(path.name.removesuffix(".json.gz") for path in (FOLDER / engine).glob("*.gz"))


@cache
def recording(engine: str, name: str) -> Recording:
    """One of them."""
    return read(FOLDER / engine / f"{name}.json.gz")
