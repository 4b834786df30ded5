"""Cutting, scaling and merging."""

from __future__ import annotations

import numpy as np
import pytest

from tests.traces.files import assert_columns, rows_of_hashes, said
from tests.traces.test_write import made
from traces import BlockHashes, Trace, TraceError, edit


def small(*arrival: float, name: str = "t") -> Trace:
    n = len(arrival)
    return Trace(np.array(arrival, float), np.arange(1, n + 1), np.arange(n), name=name)


def test_a_window_holds_its_start_and_not_its_end() -> None:
    trace = small(0, 1, 2, 3, 4)
    assert_columns(edit.window(trace, 1, 3), [0, 1], [2, 3], [1, 2])
    assert_columns(edit.window(trace, 3, float("inf")), [0, 1], [4, 5], [3, 4])
    with pytest.raises(TraceError, match="no request arrives from 7 s to before 9 s"):
        edit.window(trace, 7, 9)


def test_a_sample_keeps_each_request_on_its_own() -> None:
    trace = made(5000)
    part = edit.sample(trace, 0.3, seed=1)
    assert 0.27 < len(part) / len(trace) < 0.33
    assert part.arrival_s[0] == 0
    assert edit.sample(trace, 0.3, seed=1).arrival_s.tolist() == part.arrival_s.tolist()
    assert len(edit.sample(trace, 1.0, seed=1)) == 5000
    for share in (0, -1, 1.5, float("nan")):
        with pytest.raises(TraceError, match="a sample must be"):
            edit.sample(trace, share, 0)
    with pytest.raises(TraceError, match="leaves no request"):
        edit.sample(trace.head(2), 1e-9, 0)


def test_scaled_lengths_round_and_never_vanish() -> None:
    trace = Trace(np.zeros(3), np.array([1, 10, 25]), np.array([0, 1, 7]))
    scaled = edit.scale_lengths(trace, prompt=0.1, output=2)
    assert_columns(scaled, [0, 0, 0], [1, 1, 2], [0, 2, 14])
    hashed = made(10)
    assert edit.scale_lengths(hashed, output=2).hashes is hashed.hashes
    lost = edit.scale_lengths(hashed, prompt=2)
    assert lost.hashes is None
    assert said(lost, "hash ids left out")
    for factor in (0, -1, float("inf"), float("nan")):
        with pytest.raises(TraceError, match="prompt scale"):
            edit.scale_lengths(trace, prompt=factor)


def test_merging_lays_traces_over_one_another() -> None:
    merged = edit.merge([small(0, 2, 4, name="a"), small(0, 3, name="b")])
    assert_columns(merged, [0, 0, 2, 3, 4], [1, 1, 2, 2, 3], [0, 0, 1, 1, 2])
    assert merged.tenant is not None
    assert merged.tenant.tolist() == ["a", "b", "a", "b", "a"]
    assert merged.priority is None
    with pytest.raises(TraceError, match="nothing to merge"):
        edit.merge([])


def test_merging_keeps_hash_ids_of_different_files_apart() -> None:
    def one(ids: list[int], size: int, name: str) -> Trace:
        hashes = BlockHashes(np.array(ids), np.array([0, len(ids)]), size)
        return Trace(np.zeros(1), np.array([32]), np.array([1]), hashes=hashes, name=name)

    merged = edit.merge([one([7, 8], 16, "a"), one([7], 32, "b")])
    assert merged.hashes is not None
    assert merged.hashes.block_tokens == 16
    first, second = rows_of_hashes(merged)
    assert len(first) == len(second) == 2
    assert not set(first) & set(second)
    bare = edit.merge([one([7], 32, "a"), small(0, name="b")])
    assert bare.hashes is None
    assert said(bare, "hash ids left out: b has none")


def test_merging_gives_priority_0_where_there_was_none() -> None:
    ranked = Trace(np.zeros(1), np.ones(1, int), np.ones(1, int), priority=np.array([5]))
    merged = edit.merge([ranked, small(0)], ["a", "b"])
    assert merged.priority is not None
    assert merged.priority.tolist() == [5, 0]
