"""Length-aware scheduling for LLM inference: one policy, simulated and measured side by side.

- `load_trace`: a trace file of any known format, or a built-in workload.
- `replay`: a trace under one policy against the simulated clock.
- `compare`: a trace under several policies.
- `execute`: a trace under one policy on a real model and a real clock (needs PyTorch).
- `Record`: what a run returns: `.summary`, `.requests`, `.steps`, `.events`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lengthwise.api import compare, load_trace, replay
    from lengthwise.on_model import execute
    from serving.record import Record

__all__ = ["Record", "compare", "execute", "load_trace", "replay"]

_PLACES = {
    "Record": "serving.record",
    "compare": "lengthwise.api",
    "execute": "lengthwise.on_model",
    "load_trace": "lengthwise.api",
    "replay": "lengthwise.api",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the command line starts without pandas."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
