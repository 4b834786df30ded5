"""Figures against numpy on the expanded samples, and against runs simulated token by token."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.distribution import Distribution
from serving.gaps import token_gaps
from serving.metrics import Folded, summarize
from tests.report.toy import Toy, toy

DESIGN_KEYS = (
    ["policy", "num_prompts", "completed", "refused", "unfinished", "duration"]
    + ["total_input_tokens", "total_output_tokens"]
    + ["request_throughput", "output_throughput", "total_token_throughput"]
    + [
        f"{figure}_{name}_ms"
        for name in ("ttft", "tpot", "itl", "e2el", "queue")
        for figure in ("mean", "median", "p90", "p99", "std")
    ]
    + ["padding_ratio", "prefill_padding_ratio", "decode_padding_ratio", "attention_efficiency"]
    + ["steps", "mean_step_tokens", "budget_use", "mean_running", "mean_grouping_wait_ms"]
    + ["preemptions", "prefix_hit_rate", "kv_mean_fraction", "kv_peak_fraction", "mfu", "mbu"]
)

seeds = st.integers(0, 2**32 - 1)


@given(
    st.lists(
        st.tuples(st.floats(0, 1e4) | st.sampled_from([0.1, 0.25]), st.integers(0, 5)), max_size=30
    ),
    st.floats(0, 100),
)
def test_distribution_is_that_of_the_expanded_sample(pairs: list[Any], q: float) -> None:
    values = np.array([v for v, _ in pairs], float)
    counts = np.array([c for _, c in pairs], int)
    d = Distribution.of(values, counts)
    expanded = np.repeat(values, counts)
    assert len(d) == len(expanded)
    if not len(expanded):
        assert d.mean() is d.std() is d.percentile(q) is None
        return
    for p in (q, 0, 50, 90, 99, 100):
        assert d.percentile(p) == np.percentile(expanded, p)
    assert d.mean() == pytest.approx(expanded.mean(), rel=1e-12)
    assert d.std() == pytest.approx(expanded.std(), rel=1e-9, abs=1e-9)


def test_figures_do_not_depend_on_how_many_threads_there_are() -> None:
    code = """
import numpy as np
from serving.distribution import Distribution
random = np.random.default_rng(0)
d = Distribution.of(random.exponential(1.0, 300_000), random.integers(1, 9, 300_000))
print(d.mean().hex(), d.std().hex())
"""
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(said) == 1


def test_distribution_leaves_out_what_is_undefined() -> None:
    d = Distribution.of([3.0, math.nan, 1.0])
    assert (len(d), d.mean(), d.percentile(50)) == (2, 2.0, 2.0)
    assert len(Distribution.of([math.nan])) == 0


@settings(max_examples=150, deadline=None)
@given(
    seed=seeds,
    requests=st.integers(1, 14),
    replicas=st.integers(1, 3),
    trouble=st.sampled_from([0.0, 0.15, 0.5]),
    steps=st.sampled_from([25, 10_000]),  # 25: the user stopped early
    padded=st.booleans(),
)
def test_gaps_are_those_between_the_tokens(seed: int, **how: Any) -> None:
    run = toy(seed, **how)
    r = run.record
    found = token_gaps(r.requests, r.steps, r.events)
    wanted = sorted(run.gaps())
    assert np.repeat(found.values, found.counts).tolist() == wanted
    if wanted:
        assert found.percentile(99) == np.percentile(wanted, 99)


def test_a_preempted_request_has_one_gap_across_the_preemption() -> None:
    # The toy with much trouble, whose truth is a list of times for each request.
    run = next(t for t in (toy(s, trouble=0.5) for s in range(50)) if _long_gap(t))
    life = _long_gap(run)
    longest = max(b - a for a, b in zip(life.tokens, life.tokens[1:], strict=False))
    r = run.record
    assert longest in token_gaps(r.requests, r.steps, r.events).values


def _long_gap(run: Toy) -> Any:
    return next((x for x in run.lives if x.preemptions and len(x.tokens) > 3), None)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, padded=st.booleans(), replicas=st.integers(1, 2))
def test_summary_against_the_definitions(seed: int, padded: bool, replicas: int) -> None:
    run = toy(seed, padded=padded, replicas=replicas)
    s = run.record.summary
    lives, steps = run.lives, run.record.steps
    done = [x for x in lives if x.status == "finished"]
    span = max(x.finished for x in done) - min(x.arrival for x in lives)
    assert (s["num_prompts"], s["completed"], s["unfinished"]) == (len(lives), len(done), 0)
    assert s["refused"] == sum(x.status == "refused" for x in lives)
    assert s["duration"] == pytest.approx(span)
    assert s["total_output_tokens"] == sum(len(x.tokens) for x in done)
    assert s["output_throughput"] == pytest.approx(s["total_output_tokens"] / span)
    assert s["request_throughput"] == pytest.approx(len(done) / span)
    total = sum(x.prompt + x.output for x in done)
    assert s["total_token_throughput"] == pytest.approx(total / span)

    samples = {
        "ttft": [x.tokens[0] - x.arrival for x in done if x.tokens],
        "tpot": [
            (x.tokens[-1] - x.tokens[0]) / (len(x.tokens) - 1) for x in done if len(x.tokens) > 1
        ],
        "itl": run.gaps(),
        "e2el": [x.finished - x.arrival for x in done],
        "queue": [x.scheduled - x.arrival for x in done],
    }
    for name, sample in samples.items():
        for figure, value in {
            "mean": np.mean(sample) if sample else None,
            "median": np.median(sample) if sample else None,
            "p90": np.percentile(sample, 90) if sample else None,
            "p99": np.percentile(sample, 99) if sample else None,
            "std": np.std(sample) if sample else None,
        }.items():
            found = s[f"{figure}_{name}_ms"]
            if value is None:
                assert found is None
            else:
                assert found == pytest.approx(1e3 * float(value), rel=1e-9, abs=1e-6)
    assert s["mean_grouping_wait_ms"] == pytest.approx(s["mean_queue_ms"] / 4)
    assert s["preemptions"] == sum(x.preemptions for x in lives)

    rows = steps.to_dict("records")
    busy = sum(r["end_s"] - r["start_s"] for r in rows)
    slots = [r["prefill_slots"] + r["decode_slots"] for r in rows]
    tokens = [r["prefill_tokens"] + r["decode_tokens"] for r in rows]
    full = [i for i, n in enumerate(slots) if n]
    assert s["steps"] == len(rows)
    assert s["padding_ratio"] == pytest.approx(1 - sum(tokens) / sum(slots))
    assert s["mean_step_tokens"] == pytest.approx(np.mean([tokens[i] for i in full]))
    assert s["budget_use"] == pytest.approx(np.mean([slots[i] / 64 for i in full]))
    for key, column, scale in (
        ("mean_running", "running", 1),
        ("kv_mean_fraction", "kv_blocks_used", 1000),
    ):
        weighted = sum(r[column] * (r["end_s"] - r["start_s"]) for r in rows)
        assert s[key] == pytest.approx(weighted / busy / scale)
    assert s["kv_peak_fraction"] == max(r["kv_blocks_used"] for r in rows) / 1000
    assert s["mfu"] == pytest.approx(sum(r["flops"] for r in rows) / busy / 1e4)
    assert s["mbu"] == pytest.approx(sum(r["bytes"] for r in rows) / busy / 1e3)


def test_summary_has_the_names_on_disk_and_is_json() -> None:
    summary = toy(1).record.summary
    assert list(summary) == DESIGN_KEYS
    json.dumps(summary, allow_nan=False)


def test_padding_and_attention_by_phase() -> None:
    run = toy(3, padded=True)
    use, steps = run.record.folded.steps.efficiency, run.record.steps
    for phase in ("prefill", "decode"):
        slots, tokens = steps[f"{phase}_slots"].sum(), steps[f"{phase}_tokens"].sum()
        assert use[phase].padding_ratio == pytest.approx(1 - tokens / slots)
        useful = steps[f"{phase}_useful_pairs"].sum()
        assert use[phase].attention_efficiency == pytest.approx(
            useful / steps[f"{phase}_computed_pairs"].sum()
        )
    assert use["whole"].slots == use["prefill"].slots + use["decode"].slots
    assert run.record.summary["prefill_padding_ratio"] == use["prefill"].padding_ratio
    assert run.record.summary["attention_efficiency"] == use["whole"].attention_efficiency


def test_what_is_undefined_is_none() -> None:
    r = toy(5).record
    nothing = summarize({}, r.requests[:0], Folded.of(r.requests[:0], r.steps[:0], r.events[:0]))
    assert nothing["completed"] == nothing["steps"] == 0
    for key in DESIGN_KEYS[5:]:
        assert nothing[key] in (None, 0)
    for key in ("duration", "mean_itl_ms", "padding_ratio", "budget_use", "mfu", "mean_running"):
        assert nothing[key] is None
    without = summarize({}, r.requests, r.folded)
    for key in ("policy", "budget_use", "kv_mean_fraction", "kv_peak_fraction", "mfu", "mbu"):
        assert without[key] is None
    steps = r.steps.assign(flops=np.nan)
    assert summarize(r.config, r.requests, Folded.of(r.requests, steps, r.events))["mfu"] is None


def test_prefix_hit_rate_counts_first_admissions() -> None:
    run = toy(2, trouble=0.5)
    r = run.record
    assert r.summary["prefix_hit_rate"] is None
    events = r.events.copy()
    admits = (events["kind"] == "admit").to_numpy()
    assert r.requests["preemptions"].sum() > 0
    events.loc[admits, "tokens"] = 2
    config = r.config | {"enable_prefix_caching": True}
    prompts = sum(x.prompt for x in run.lives if x.admitted or x.status == "finished")
    served = len(set(events.loc[admits, "request"]))
    rate = summarize(config, r.requests, Folded.of(r.requests, r.steps, events))["prefix_hit_rate"]
    assert rate == pytest.approx(2 * served / prompts)


def test_goodput_counts_requests_that_meet_every_limit() -> None:
    run = toy(7)
    r = run.record
    limits = {"ttft": 1000.0, "tpot": 300.0}
    good = 0
    for x in run.lives:
        if x.status == "finished":
            ttft = x.tokens[0] - x.arrival if x.tokens else 0
            gaps = len(x.tokens) - 1
            tpot = (x.tokens[-1] - x.tokens[0]) / gaps if gaps > 0 else 0  # undefined: met
            good += ttft <= 1.0 and tpot <= 0.3
    s = summarize(r.config, r.requests, r.folded, goodput=limits)
    assert 0 < good < s["completed"]
    assert s["request_goodput"] == pytest.approx(good / s["duration"])
    with pytest.raises(ValueError, match=r"'itl' is not one of ttft, tpot, e2el"):
        summarize(r.config, r.requests, r.folded, goodput={"itl": 1.0})


def test_events_that_fit_no_table_are_an_error() -> None:
    r = toy(4).record
    astray = r.events.copy()
    astray.loc[0, "step"] = 10**6
    with pytest.raises(ValueError, match=r"step 1000000 of request \d+ is not in steps"):
        token_gaps(r.requests, r.steps, astray)
    finished = r.requests[r.requests["status"] == "finished"]
    stranger = r.events.copy()
    stranger["request"] = 99
    with pytest.raises(ValueError, match="request 99 is not in requests"):
        token_gaps(finished, r.steps, stranger)
