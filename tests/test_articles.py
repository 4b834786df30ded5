"""The worked examples of the two articles that the project grew from, number by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lengthwise
from lengthwise import Record
from policies.grouping import TokenBudget
from policies.layout import PadToLimit, PadToLongest
from traces import Trace

STEP = {"cost": "fixed", "step_ms": 50.0}


def trace(*requests: tuple[float, int, int]) -> Trace:
    """(arrival, prompt, output) of each."""
    arrivals, prompts, outputs = zip(*requests, strict=True)
    return Trace(np.array(arrivals, float), np.array(prompts), np.array(outputs))


def replay(requests: Trace, policy: str, **options: Any) -> Record:
    return lengthwise.replay(requests, policy, **STEP, **options)


def test_padding_to_the_longest_of_four() -> None:
    record = replay(trace((0, 512, 1), (0, 1024, 1), (0, 1536, 1), (0, 8192, 1)), "dynamic-padding")
    step = record.steps.iloc[0]
    assert step.prefill_slots == 32_768
    assert step.prefill_tokens == 11_264
    summary = record.summary
    assert 1 - summary["prefill_padding_ratio"] == pytest.approx(0.344, abs=5e-4)
    assert summary["prefill_padding_ratio"] == pytest.approx(0.656, abs=5e-4)
    assert summary["attention_efficiency"] == pytest.approx(0.264, abs=5e-4)


def test_static_pads_to_the_limit_and_dynamic_to_the_longest() -> None:
    assert PadToLimit(8192).width(192) == 8192
    assert PadToLongest().width(192) == 192
    three = trace((0, 128, 1), (0, 160, 1), (0, 192, 1))
    static = replay(three, "static", max_model_len=8192).steps.iloc[0]
    assert static.prefill_slots == 3 * 8192
    assert replay(three, "dynamic-padding").steps.iloc[0].prefill_slots == 3 * 192


@pytest.mark.parametrize(
    ("prompt", "budget", "seats", "together"),
    [(512, 8192, 32, 16), (2048, 8192, 32, 4), (8192, 8192, 32, 1), (64, 4096, 256, 64)],
)
def test_a_token_budget_admits_by_length(
    prompt: int, budget: int, seats: int, together: int
) -> None:
    assert TokenBudget(budget).budget == budget
    many = trace(*[(0.0, prompt, 1)] * (3 * together))
    options = {"max_num_batched_tokens": budget, "max_num_seqs": seats}
    for policy in ("token-aware", "chunked-prefill"):
        steps = replay(many, policy, **options).steps
        assert list(steps.prefill_rows) == [together] * 3
        assert list(steps.prefill_slots) == [together * prompt] * 3


def test_packed_computes_ten_slots_instead_of_fifteen() -> None:
    three = trace((0, 3, 1), (0, 5, 1), (0, 2, 1))
    packed = replay(three, "dynamic-padding", layout="packed").steps.iloc[0]
    assert packed.prefill_slots == 10
    assert replay(three, "dynamic-padding").steps.iloc[0].prefill_slots == 15
    from serving.request import Request
    from serving.step import Work

    works = [Work(Request(i, 0.0, n, 1), 0, n, True) for i, n in enumerate((3, 5, 2))]
    assert np.cumsum([0] + [w.tokens for w in works]).tolist() == [0, 3, 8, 10]


def test_a_batch_drains_and_a_continuous_one_is_refilled() -> None:
    six = trace((0, 8, 10), (0, 8, 20), (0, 8, 100), (0, 8, 1000), (0, 8, 300), (0, 8, 300))
    drained = replay(six, "dynamic-padding", max_num_seqs=4).steps
    batch = drained.iloc[:1000]
    live = [4] * 10 + [3] * 10 + [2] * 80 + [1] * 900
    assert list(batch.decode_tokens[1:]) == live[1:]
    assert set(batch.decode_rows[1:]) == {4}
    events = replay(six, "continuous", max_num_seqs=4).events
    admitted = events[events.kind == "admit"].set_index("request").step
    assert admitted[4] == 10
    assert admitted[5] == 20


def test_a_long_prompt_in_chunks_neither_blocks_nor_starves() -> None:
    mixed = trace(*[(0.0, 100, 400)] * 6, (0.2, 50_000, 5), (0.21, 100, 5))
    record = replay(mixed, "chunked-prefill", max_num_batched_tokens=8192)
    steps, events = record.steps, record.events
    assert (steps.prefill_tokens + steps.decode_tokens).max() <= 8192
    chunks = events[(events.kind == "chunk") & (events.request == 6)].tokens
    assert chunks.sum() == 50_000
    assert list(chunks[:6]) == [8192 - 6] * 6
    during = steps[steps.step.isin(events[events.request == 6].step)]
    assert (during.decode_tokens >= 6).all()
    assert (record.requests.status == "finished").all()


FIVE = trace((0, 8, 100), (0, 8, 20), (0, 8, 50), (0, 8, 200), (0.0001, 8, 30))


@pytest.mark.parametrize(
    ("policy", "ends", "responses", "average"),
    [
        ("static", 11.5, [5.0, 1.0, 2.5, 10.0, 11.5], 6.0),
        ("continuous", 10.0, [5.0, 1.0, 2.5, 10.0, 2.5], 4.2),
    ],
)
def test_five_requests_on_four_seats(
    policy: str, ends: float, responses: list[float], average: float
) -> None:
    record = replay(FIVE, policy, max_num_seqs=4)
    requests = record.requests
    assert requests.finished_s.max() == pytest.approx(ends, abs=1e-3)
    assert list(requests.e2e_s) == pytest.approx(responses, abs=1e-3)
    assert requests.e2e_s.mean() == pytest.approx(average, abs=1e-3)
    assert record.summary["total_output_tokens"] == 400


def test_a_hundred_requests_alternating() -> None:
    hundred = trace(*[(0.0, 8, 20 if i % 2 == 0 else 200) for i in range(100)])
    static = replay(hundred, "static", max_num_seqs=4).summary
    assert static["duration"] == pytest.approx(250.0)
    assert static["output_throughput"] == pytest.approx(44.0)
    continuous = replay(hundred, "continuous", max_num_seqs=4)
    assert 11_000 / 4 * 0.05 == 137.5
    assert continuous.summary["steps"] == 2840
    assert continuous.summary["duration"] == pytest.approx(142.0)
    assert continuous.summary["output_throughput"] <= 80.0
