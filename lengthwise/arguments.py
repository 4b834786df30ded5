"""The words of a command line, before any command looks at them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LIMIT = re.compile(r"\w+:\S+")


def gather(argv: Sequence[str]) -> list[str]:
    """The arguments, with `--goodput ttft:500 tpot:50` (as in `vllm bench serve`) as one value."""
    gathered: list[str] = []
    limits: list[str] | None = None
    for word in argv:
        if limits is not None and _LIMIT.fullmatch(word):
            limits.append(word)
            gathered[-1] = " ".join(limits)
            continue
        limits = [] if word == "--goodput" else None
        gathered.append(word)
        if limits is not None:
            gathered.append("")
    return gathered
