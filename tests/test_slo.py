"""Limits: as written, and held against counting one by one; who did not finish took for ever."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lengthwise
from lengthwise.arguments import gather
from lengthwise.config import RunConfig
from serving.distribution import Distribution
from serving.metrics import summarize
from serving.record import Record
from serving.slo import Limit, parse_goodput, parse_slo, per_request
from tests.report.toy import toy

SLO_KEYS = ("request_goodput", "slo_attainment", "slo_met", "slo")


@given(
    st.lists(st.floats(0, 100), max_size=40),
    st.integers(0, 10),
    st.sampled_from([0, 37.5, 50, 90, 99, 100]),
)
def test_those_that_did_not_finish_took_for_ever(
    values: list[float], missing: int, q: float
) -> None:
    limit = Limit.of(f"ttft_p{q:g}_ms", 1.0)
    found = limit.value_s(Distribution.of(values), missing)
    everyone = np.array(values + [math.inf] * missing)
    if not len(everyone):
        assert found is None
        return
    with np.errstate(invalid="ignore"):
        expected = np.percentile(everyone, q)  # nan: between a number and for ever
    place = q / 100 * (len(everyone) - 1)
    if math.isnan(expected):
        expected = math.inf if place > len(values) - 1 else values and sorted(values)[int(place)]
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_any_metric_any_percentile() -> None:
    record = lengthwise.replay("chat", limit=60, slo="itl_p99.9_ms=1,queue_p25_ms=2,ttft_std_ms=3")
    parts = record.summary["slo"]
    assert list(parts) == ["itl_p99.9_ms", "queue_p25_ms", "ttft_std_ms"]
    gaps = record.latencies["itl"]
    pooled = np.repeat(gaps.values, gaps.counts) * 1e3
    assert parts["itl_p99.9_ms"]["value_ms"] == pytest.approx(np.percentile(pooled, 99.9))
    assert parts["itl_p99.9_ms"]["attainment"] == pytest.approx(np.mean(pooled <= 1))
    queue = record.requests.queue_s * 1e3
    assert parts["queue_p25_ms"]["value_ms"] == pytest.approx(np.percentile(queue, 25))
    assert parts["ttft_std_ms"]["value_ms"] == pytest.approx(
        record.requests.ttft_s.std(ddof=0) * 1e3
    )


def counted(record: Record, **limits_ms: float) -> int:
    """Requests that keep every limit, one by one."""
    good = 0
    for row in record.requests.itertuples():
        if row.status == "finished":
            late = [
                getattr(row, column) * 1e3 > ms  # an undefined one (nan) is not
                for column, ms in limits_ms.items()
            ]
            good += not any(late)
    return good


def test_a_limit_of_the_run_is_one_on_each_request() -> None:
    r = toy(7).record
    slo = {"ttft_p50_ms": 400.0, "ttft_p90_ms": 1000.0, "tpot_mean_ms": 300.0, "itl_p50_ms": 1e-3}
    s = summarize(r.config, r.requests, r.folded, slo=slo)
    good = counted(r, ttft_s=1000.0, tpot_s=300.0)
    assert 0 < good < s["completed"]
    assert s["request_goodput"] == pytest.approx(good / s["duration"])
    assert s["slo_attainment"] == good / len(r.requests)
    assert not s["slo_met"]
    assert not s["slo"]["itl_p50_ms"]["met"]
    both = summarize(r.config, r.requests, r.folded, slo=slo, goodput={"ttft": 500.0})
    assert both["slo_attainment"] == counted(r, ttft_s=500.0, tpot_s=300.0) / len(r.requests)


def test_limits_that_no_request_has_give_no_goodput() -> None:
    assert per_request({"itl_p99_ms": 5.0, "ttft_std_ms": 5.0}, {}) == {}
    record = lengthwise.replay("chat", limit=20, slo={"itl_p99_ms": 1e6})
    assert record.summary["slo_met"] is True
    assert record.summary["request_goodput"] is None


def test_refused_requests_miss_every_limit() -> None:
    """Half are too long for the limit: the median may be met, the p99 is not."""
    trace = lengthwise.load_trace("chat", limit=40)
    half = replace(trace, prompt_tokens=np.where(np.arange(40) % 2, 900, 10))
    outputs = replace(half, output_tokens=np.full(40, 5))
    record = lengthwise.replay(
        outputs, max_model_len=512, slo="ttft_p40_ms=1e6,ttft_p99_ms=1e6,tpot_mean_ms=1e6"
    )
    s = record.summary
    assert s["refused"] == 20
    assert [part["met"] for part in s["slo"].values()] == [True, False, False]
    assert s["slo"]["ttft_p99_ms"]["value_ms"] is None
    assert s["slo"]["ttft_p99_ms"]["attainment"] == s["slo_attainment"] == 0.5
    assert not s["slo_met"]


def test_a_run_without_limits_says_nothing_of_them() -> None:
    assert not set(SLO_KEYS) & set(lengthwise.replay("chat", limit=10).summary)


# As written


def test_forms() -> None:
    assert parse_slo("ttft_p99_ms=500, tpot_median_ms=50") == {
        "ttft_p99_ms": 500.0,
        "tpot_median_ms": 50.0,
    }
    assert parse_goodput("ttft:500 tpot:50.5") == {"ttft": 500.0, "tpot": 50.5}
    assert RunConfig.of(slo={"e2el_p99_ms": 5}, goodput={"e2el": 9}).slo == {"e2el_p99_ms": 5.0}


@pytest.mark.parametrize(
    ("words", "gathered"),
    [
        (["--goodput", "ttft:5", "tpot:6", "a.csv"], ["--goodput", "ttft:5 tpot:6", "a.csv"]),
        (["a.csv", "--goodput", "ttft:5", "--json"], ["a.csv", "--goodput", "ttft:5", "--json"]),
        (["--policy", "p.py:Mine", "a:1"], ["--policy", "p.py:Mine", "a:1"]),
    ],
)
def test_goodput_takes_several_words_as_in_vllm(words: list[str], gathered: list[str]) -> None:
    assert gather(words) == gathered


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("slo", "tfft_p99_ms=5", "--slo tfft_p99_ms=5: tfft_p99_ms: unknown; did you mean ttft"),
        ("slo", "p99_ttft_ms=5", "unknown; did you mean ttft_p99_ms"),
        ("slo", "ttft_p101_ms=5", "ttft_p101_ms: unknown"),
        ("slo", "ttft_p99_ms=0", "give a number of milliseconds above 0, not 0"),
        ("slo", "ttft_p99_ms=nan", "above 0, not nan"),
        ("slo", "ttft_p99_ms", "give limits in ms, such as ttft_p99_ms=500,tpot_p99_ms=50"),
        ("slo", "", "give limits in ms"),
        ("slo", "ttft_p99_ms=5,ttft_p99_ms=6", "ttft_p99_ms is given twice"),
        ("goodput", "ttfd:5", "'ttfd' is not one of ttft, tpot, e2el. did you mean ttft?"),
        ("goodput", {"itl": 5}, "'itl' is not one of ttft, tpot, e2el"),
        ("goodput", "ttft:-1", "above 0, not -1"),
    ],
)  # fmt: skip
def test_what_says_nothing_is_an_error(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"^--") as error:
        RunConfig.of(**{field: value})
    assert message in str(error.value)
