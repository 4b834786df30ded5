"""The columns themselves, the built-in workloads, and how cheap the import is."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.traces.files import rows_of_hashes
from tests.traces.test_write import made
from traces import WORKLOADS, BlockHashes, Trace, TraceError, load


def test_columns_that_do_not_fit_together_are_refused() -> None:
    one = np.ones(2, int)
    with pytest.raises(TraceError, match="prompt_tokens has 3 rows, arrival_s has 2"):
        Trace(np.zeros(2), np.ones(3, int), one)
    with pytest.raises(TraceError, match="hash_ids has 1 rows"):
        Trace(np.zeros(2), one, one, hashes=BlockHashes(one, np.array([0, 2]), 16))
    with pytest.raises(TraceError, match="never fall"):
        Trace(np.array([1.0, 0.0]), one, one)
    with pytest.raises(TraceError, match="fewer than 1 token"):
        Trace(np.zeros(2), one * 0, one)
    with pytest.raises(TraceError, match="fewer than 0 tokens"):
        Trace(np.zeros(2), one, -one)
    assert Trace(np.zeros(0), one[:0], one[:0]).longest == 0


def test_taking_rows_takes_all_of_them() -> None:
    trace = made(50)
    part = trace.take(np.array([3, 10, 11]))
    assert part.prompt_tokens.tolist() == trace.prompt_tokens[[3, 10, 11]].tolist()
    assert rows_of_hashes(part) == [rows_of_hashes(trace)[i] for i in (3, 10, 11)]
    assert trace.head(0).hashes is not None
    assert len(trace.head(0)) == 0


@pytest.mark.parametrize(
    ("name", "prompt", "output", "rate"),
    [("chat", 1155, 211, 5.53), ("code", 2048, 28, 2.45), ("long-context", 12035, 343, 3.40)],
)
def test_workloads_have_the_means_of_their_origin(
    name: str, prompt: int, output: int, rate: float
) -> None:
    trace = load(name, limit=100_000, seed=1)
    assert len(trace) == 100_000
    assert trace.name == name
    assert trace.prompt_tokens.mean() == pytest.approx(prompt, rel=0.06)
    assert trace.output_tokens.mean() == pytest.approx(output, rel=0.06)
    assert (len(trace) - 1) / trace.span_s == pytest.approx(rate, rel=0.02)
    assert trace.prompt_tokens.min() >= 1


def test_workloads_are_drawn_from_their_seed() -> None:
    assert len(load("chat")) == 1000
    assert load("chat", seed=3).arrival_s.tolist() == load("chat", seed=3).arrival_s.tolist()
    assert load("chat", seed=3).arrival_s.tolist() != load("chat", seed=4).arrival_s.tolist()
    assert load("chat", rate_scale=2).span_s == load("chat").span_s / 2
    assert set(WORKLOADS) == {"chat", "code", "long-context"}


def test_the_import_brings_nothing_heavy() -> None:
    heavy = "pandas pyarrow scipy matplotlib torch pydantic yaml rich"
    code = f"import sys, traces; print([m for m in {heavy.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
