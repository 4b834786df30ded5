"""Written and read again, a trace is the same to the microsecond, in every writable format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.traces.files import said
from traces import BlockHashes, Trace, TraceError, load
from traces.blocks import reblock
from traces.write import WRITERS, write


def hashed(prompt: NDArray[np.int64], size: int, seed: int = 0) -> BlockHashes:
    """Chained ids: prompts share a random number of leading blocks of a common text."""
    rng = np.random.default_rng(seed)
    counts = -(-prompt // size)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    ids = np.arange(offsets[-1]) + 1_000_000
    for row, blocks in enumerate(prompt // size):
        common = rng.integers(0, blocks + 1)
        ids[offsets[row] : offsets[row] + common] = np.arange(common)
    return BlockHashes(ids, offsets, size)


def made(n: int = 200, seed: int = 0, *, size: int | None = 16) -> Trace:
    rng = np.random.default_rng(seed)
    arrival = np.concatenate([[0], np.cumsum(rng.gamma(0.3, 3.0, n - 1))])
    prompt = rng.integers(1, 3000, n)
    return Trace(
        np.round(arrival, 7),
        prompt,
        rng.integers(1, 400, n),
        priority=rng.integers(-2, 3, n),
        tenant=rng.choice(np.array(["a", "b, c", 'd"e'], object), n),
        hashes=None if size is None else hashed(prompt, size),
    )


def same(a: Trace, b: Trace) -> None:
    np.testing.assert_allclose(a.arrival_s, b.arrival_s, rtol=0, atol=0.2e-6)
    np.testing.assert_array_equal(a.prompt_tokens, b.prompt_tokens)
    np.testing.assert_array_equal(a.output_tokens, b.output_tokens)


def same_sharing(a: Trace, b: Trace) -> None:
    """Ids may be numbered anew, but equal ones stay equal and different ones different."""
    assert a.hashes is not None
    assert b.hashes is not None
    np.testing.assert_array_equal(a.hashes.offsets, b.hashes.offsets)
    pairs = len(np.unique(np.stack([a.hashes.ids, b.hashes.ids]), axis=1)[0])
    assert pairs == len(np.unique(a.hashes.ids)) == len(np.unique(b.hashes.ids))


@pytest.mark.parametrize("size", [None, 16, 512])
@pytest.mark.parametrize("name", WRITERS)
def test_round_trip(tmp_path: Path, name: str, size: int | None) -> None:
    trace = made(size=size)
    path = tmp_path / f"out{WRITERS[name].extension}"
    written = write(trace, path, name)
    again = load(path)
    assert said(again, f"read as {name}:"), "what was written is recognised for what it is"
    same(trace, again)
    holds = WRITERS[name].holds
    if "tenant" in holds:
        assert trace.priority is not None
        assert again.priority is not None
        assert again.tenant is not None
        assert again.tenant.tolist() == list(trace.tenant if trace.tenant is not None else [])
        assert again.priority.tolist() == trace.priority.tolist()
    else:
        assert said(written, f"{name} has no tenant: left out")
        assert said(written, f"{name} has no priority: left out")
    if size is not None and "hashes" in holds:
        same_sharing(reblock(trace, WRITERS[name].block_tokens or size), again)
    if size is not None and "hashes" not in holds:
        assert said(written, f"{name} has no hashes: left out")
    assert list(tmp_path.iterdir()) == [path], "no temporary file is left"


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.integers(0, 10**13), st.integers(1, 10**9), st.integers(1, 10**9)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(sorted(WRITERS)),
)
def test_round_trip_of_any_lengths_and_microseconds(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]], name: str
) -> None:
    folder = tmp_path_factory.mktemp("w")
    micros = np.sort([row[0] for row in rows])
    long = name == "vllm-timed-trace"  # It writes an id a block of 16 tokens.
    trace = Trace(
        (micros - micros[0]) / 1e6,
        np.array([min(row[1], 1000) if long else row[1] for row in rows]),
        np.array([row[2] for row in rows]),
    )
    path = folder / f"t{WRITERS[name].extension}"
    write(trace, path, name)
    same(trace, load(path, format=name))


@pytest.mark.parametrize("suffix", ["csv.gz", "csv.zst", "jsonl.gz", "jsonl.zst", "parquet"])
def test_the_extension_chooses_format_and_compression(tmp_path: Path, suffix: str) -> None:
    trace = made(50)
    path = tmp_path / f"t.{suffix}"
    write(trace, path)
    again = load(path)
    assert again.arrival_s.tolist() == trace.arrival_s.tolist(), "native formats lose nothing"
    same_sharing(trace, again)
    magic = {"gz": b"\x1f\x8b", "zst": b"\x28\xb5", "parquet": b"PA"}[suffix.split(".")[-1]]
    assert path.read_bytes().startswith(magic)


def test_what_cannot_be_written_says_why(tmp_path: Path) -> None:
    trace = made(5)
    with pytest.raises(TraceError, match=r"extension names no format. Use .csv"):
        write(trace, tmp_path / "t.txt")
    with pytest.raises(TraceError, match=r"'aiperf' cannot be written. Choose csv"):
        write(trace, tmp_path / "t.jsonl", "aiperf")
    with pytest.raises(TraceError, match=r"Leave .gz out"):
        write(trace, tmp_path / "t.parquet.gz")
    with pytest.raises(TraceError, match=r"cannot be written"):
        write(trace, tmp_path / "no folder" / "t.csv")
    with pytest.raises(TraceError, match=r"0 output tokens"):
        write(replace(trace, output_tokens=trace.output_tokens * 0), tmp_path / "t", "burstgpt")
    with pytest.raises(TraceError, match=r"must be a multiple"):
        write(replace(trace, hashes=hashed(trace.prompt_tokens, 24)), tmp_path / "t", "mooncake")
    assert list(tmp_path.iterdir()) == []


def test_mooncake_files_have_whole_milliseconds_where_times_are(tmp_path: Path) -> None:
    trace = Trace(np.array([0, 0.25]), np.array([5, 6]), np.array([7, 8]))
    write(trace, tmp_path / "m.jsonl", "mooncake")
    assert '"timestamp": 250,' in (tmp_path / "m.jsonl").read_text()


def test_reblocking_keeps_exactly_the_sharing_of_text() -> None:
    """Against ids made from real token lists: a block's id is its whole prefix."""
    rng = np.random.default_rng(5)
    base = rng.integers(0, 9, 400)
    texts = [
        np.concatenate([base[:k], rng.integers(10, 19, m)])
        for k, m in rng.integers(1, 200, (40, 2))
    ]
    prompt = np.array([len(text) for text in texts])

    def ids(size: int) -> BlockHashes:
        prefixes = [
            tuple(text[: min(end + size, len(text))])
            for text in texts
            for end in range(0, len(text), size)
        ]
        numbers = {prefix: i for i, prefix in enumerate(dict.fromkeys(prefixes))}
        counts = -(-prompt // size)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return BlockHashes(np.array([numbers[p] for p in prefixes]), offsets, size)

    zeros = np.zeros(len(prompt))
    fine = Trace(zeros, prompt, prompt, hashes=ids(8))
    coarse = Trace(zeros, prompt, prompt, hashes=ids(32))
    same_sharing(reblock(fine, 32), coarse)
    # From coarse to fine no sharing is lost that the coarse ids show, and none is invented.
    finer = reblock(coarse, 8)
    assert finer.hashes is not None
    assert len(np.unique(finer.hashes.ids)) >= len(np.unique(ids(8).ids))
    same_sharing(reblock(finer, 32), coarse)
    assert reblock(coarse, 32) is coarse
