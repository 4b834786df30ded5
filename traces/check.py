"""Whether a trace can be used as it is: every bad row found, not only the first."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from traces.layout import Options
from traces.load import read
from traces.trace import Trace
from traces.trouble import Trouble


@dataclass(frozen=True)
class Check:
    """What a check found; `examples` has the first bad rows, each as its error message."""

    trace: Trace
    bad_rows: int
    examples: tuple[str, ...]


def check(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    tokenizer: str | None = None,
    output_tokens: int | None = None,
) -> Check:
    """Read all of the file at `path` and list its bad rows.

    Raises:
        TraceError: it cannot be read at all, or no row is good.
    """
    trouble = Trouble(os.fspath(path), "skip")
    options = Options(tokenizer=tokenizer, output_tokens=output_tokens)
    trace = read(Path(path), format, trouble, options)
    return Check(trace, trouble.skipped, tuple(trouble.examples))
