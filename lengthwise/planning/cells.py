"""One run of many: its configuration on a trace, the key it is stored under, and how it is run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lengthwise.config import RunConfig
from lengthwise.planning.store import Store
from serving.folder import RecordExists
from traces import Trace

READING = ("trace", "format", "limit", "on_bad_row", "spread_ties", "tokenizer")
"""Fields that say how the trace is read: the hash of what was read stands for them."""

FILES = ("policy", "cost", "model")
"""Fields that may name a file, whose content counts."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One run: `config` on `trace`, which is at its own rate (the run applies `rate_scale`)."""

    config: RunConfig
    trace: Trace
    key: str
    """Equal for equal configurations, trace contents and versions, and else different."""

    @classmethod
    def of(cls, config: RunConfig, trace: Trace, trace_hash: str) -> Cell:
        """A cell with its key; `trace_hash` is what `hash_of` gives for `trace`."""
        asked = config.model_dump(mode="json", exclude=set(READING))
        described = {
            "run": asked,
            "files": [_content(part) for part in (asked, *(asked["groups"] or ()))],
            "trace": trace_hash,
            "version": version("lengthwise"),
        }
        text = json.dumps(described, sort_keys=True)
        return cls(config, trace, hashlib.sha256(text.encode()).hexdigest()[:32])


def _content(fields: Mapping[str, Any]) -> dict[str, str]:
    """Hashes of the files that a configuration names."""
    found = {}
    for name in FILES:
        value = str(fields.get(name) or "")
        path = Path(value.rpartition(":")[0] if ".py:" in value else value)
        path = path / "config.json" if path.is_dir() else path
        if value and path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def hash_of(trace: Trace) -> str:
    """A hash of a trace's content: arrivals, lengths, priorities, prefixes."""
    digest = hashlib.sha256()
    hashes = trace.hashes
    columns = [trace.arrival_s, trace.prompt_tokens, trace.output_tokens, trace.priority]
    if hashes is not None:
        digest.update(str(hashes.block_tokens).encode())
        columns += [hashes.ids, hashes.offsets]
    for column in columns:
        digest.update(b"-" if column is None else column.tobytes())
    return digest.hexdigest()


def run_cell(cell: Cell, root: str) -> str | None:
    """Run a cell and store its record; what a worker does.

    Returns:
        None, or why it failed.
    """
    from lengthwise.api import run, whole
    from lengthwise.cluster import prepare_run

    try:
        trace = cell.trace.at_rate(cell.config.rate_scale)
        ready = prepare_run(cell.config, trace)
        with Store(Path(root)).new(cell.key) as folder:
            whole(run(ready, trace, folder=folder)).write(folder)
    except RecordExists:
        return None  # another worker did so first
    except ValueError as error:
        return str(error)
    except Exception as error:  # a cell must not stop the others
        return f"{type(error).__name__}: {error}"
    return None
