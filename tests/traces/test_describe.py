"""The figures of a trace, against counts made one request at a time and against scipy."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces.test_write import made
from traces import BlockHashes, Trace, TraceError
from traces.describe import describe, dispersion, ranks, shared_prefix_share, spearman
from traces.plots import plot


def one_by_one(trace: Trace, window: float) -> float:
    """Variance over mean of the counts of whole windows."""
    start, last = float(trace.arrival_s[0]), float(trace.arrival_s[-1])
    counts = [0] * int((last - start) / window)
    for arrival in trace.arrival_s:
        index = int((arrival - start) / window)
        if index < len(counts):
            counts[index] += 1
    mean = sum(counts) / len(counts)
    return sum((c - mean) ** 2 for c in counts) / len(counts) / mean


def test_figures_of_a_trace() -> None:
    trace = made(3000)
    figures = describe(trace)
    gaps = np.diff(trace.arrival_s)
    assert figures["requests"] == 3000
    assert figures["total_prompt_tokens"] == sum(trace.prompt_tokens.tolist())
    assert figures["total_output_tokens"] == sum(trace.output_tokens.tolist())
    assert figures["span_s"] == trace.arrival_s[-1]
    assert figures["mean_rate"] == pytest.approx(1 / gaps.mean())
    assert figures["gap_cv"] == pytest.approx(scipy.stats.variation(gaps))
    assert figures["dispersion_1s"] == pytest.approx(one_by_one(trace, 1.0))
    assert figures["dispersion_60s"] == pytest.approx(one_by_one(trace, 60.0))
    assert figures["prompt_tokens"]["p99"] == pytest.approx(np.quantile(trace.prompt_tokens, 0.99))
    assert figures["prompt_tokens"]["max"] == trace.prompt_tokens.max()
    rho = scipy.stats.spearmanr(trace.prompt_tokens, trace.output_tokens).statistic
    assert figures["prompt_output_spearman"] == pytest.approx(rho)
    assert sum(figures["tenants"].values()) == sum(figures["priorities"].values()) == 3000
    over_time = figures["rate_over_time"]
    edges = np.arange(len(over_time["requests_per_s"]) + 1) * over_time["window_s"]
    counts, _ = np.histogram(trace.arrival_s, edges - 1e-12)
    np.testing.assert_allclose(over_time["requests_per_s"], counts / over_time["window_s"])
    assert json.loads(json.dumps(figures)) == figures, "plain JSON values"


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=40),
)
def test_rank_correlation_is_that_of_scipy(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array(column) for column in zip(*pairs, strict=True))
    np.testing.assert_allclose(ranks(a) + 1, scipy.stats.rankdata(a))
    if len(set(a.tolist())) > 1 and len(set(b.tolist())) > 1:
        assert spearman(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic, abs=1e-9)
    else:
        assert spearman(a, b) is None


def test_a_poisson_process_has_dispersion_1_and_a_constant_one_0() -> None:
    rng = np.random.default_rng(0)
    assert dispersion(np.cumsum(rng.exponential(0.1, 200_000)), 1.0) == pytest.approx(1, abs=0.03)
    assert dispersion(np.arange(10_000) / 8, 1.0) == 0
    assert dispersion(np.arange(5.0), 1.0) is None, "too few windows"


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=6))
def test_shared_prefixes_against_sets_of_texts(texts: list[list[int]]) -> None:
    """Prompts of 1 to 5 blocks of 4 tokens; ids number whole prefixes."""
    numbers: dict[tuple[int, ...], int] = {}
    ids, offsets, hit, seen = [], [0], 0, set()
    for text in texts:
        for end in range(1, len(text) + 1):
            prefix = tuple(text[:end])
            ids.append(numbers.setdefault(prefix, len(numbers)))
            hit += 4 * (prefix in seen)
            seen.add(prefix)
        offsets.append(len(ids))
    prompt = np.array([4 * len(text) for text in texts])
    hashes = BlockHashes(np.array(ids), np.array(offsets), 4)
    trace = Trace(np.zeros(len(texts)), prompt, prompt, hashes=hashes)
    assert shared_prefix_share(trace) == pytest.approx(hit / prompt.sum())


def test_undefined_figures_are_null() -> None:
    figures = describe(Trace(np.zeros(1), np.ones(1, int), np.ones(1, int)))
    for key in ("mean_rate", "gap_cv", "dispersion_1s", "prompt_output_spearman", "peak_rate_1s"):
        assert figures[key] is None
    assert describe(made(5, size=None))["shared_prefix_share"] is None


@pytest.mark.parametrize(
    "trace",
    [
        made(5000, size=None),
        Trace(np.zeros(1), np.ones(1, int), np.zeros(1, int)),
        Trace(np.array([0, 5e5]), np.full(2, 7), np.full(2, 7)),
    ],
)
def test_a_page_of_plots(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "page.png"
    plot(trace, path)
    png = path.read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert png.startswith(b"\x89PNG")
    assert width > 1000
    assert height > 700


def test_plots_that_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be saved"):
        plot(made(10), tmp_path / "page.docx")
