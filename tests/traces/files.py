"""Small trace files for the tests, and a plain comparison of what was read from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from traces import Trace


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def assert_columns(
    trace: Trace, arrival: list[float], prompt: list[int], output: list[int]
) -> None:
    np.testing.assert_allclose(trace.arrival_s, arrival, rtol=0, atol=1e-9)
    assert trace.arrival_s.dtype == np.float64
    assert trace.prompt_tokens.dtype == trace.output_tokens.dtype == np.int64
    assert trace.prompt_tokens.tolist() == prompt
    assert trace.output_tokens.tolist() == output


def rows_of_hashes(trace: Trace) -> list[list[int]]:
    assert trace.hashes is not None
    return [trace.hashes.row(i).tolist() for i in range(len(trace))]


def said(trace: Trace, part: str) -> bool:
    return any(part in note for note in trace.notes)
