"""What is read out of real records adds up: every token has its gap, every second its phase."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lengthwise.api import replay
from lengthwise.levels import in_steps, waiting
from lengthwise.slotmap import DECODING, PREFILLING, slot_map
from lengthwise.spent import PHASES, spent
from policies.compose import NAMED
from serving.record import Record
from traces import Trace

TIGHT: dict[str, Any] = {"num_gpu_blocks_override": 80, "max_model_len": 1024}
RUNS: dict[str, dict[str, Any]] = {
    **{policy: {"policy": policy} for policy in NAMED},
    "packed drain": {"policy": "bucketing", "layout": "packed"},
    "preempting": {"policy": "chunked-prefill", "max_num_batched_tokens": 128, **TIGHT},
    "whole, preempting": {"policy": "continuous", **TIGHT},
    "two steps deep": {
        "policy": "chunked-prefill",
        "async_scheduling": True,
        "max_num_batched_tokens": 128,
        **TIGHT,
    },
    "budget below seats": {"policy": "chunked-prefill", "max_num_batched_tokens": 16},
}


@pytest.fixture(scope="module", params=RUNS)
def record(request: pytest.FixtureRequest) -> Record:
    draw = np.random.default_rng(7)
    count = 60
    trace = Trace(
        np.concatenate([[0.0], np.sort(draw.random(count - 1) * 4)]),
        draw.integers(1, 600, count),
        draw.choice([0, 1, 2, 40, 200], count),
    )
    how = {"max_num_seqs": 24} | RUNS[request.param]
    return replay(trace, cost="fixed", step_ms=20, **how)


def test_the_runs_show_what_they_are_for(record: Record, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["record"]
    assert record.summary["completed"] == 60
    kinds = set(record.events["kind"])
    assert ("preempt" in kinds) == (RUNS[name].get("num_gpu_blocks_override") is not None)
    assert ("leave" in kinds) == (record.config["lifecycle"] == "drain")


def test_every_token_has_its_gap(record: Record) -> None:
    gaps, requests = record.latencies["itl"], record.requests
    outputs = requests["output_tokens"].to_numpy()
    assert len(gaps) == np.maximum(outputs - 1, 0).sum()
    spans = (requests["finished_s"] - requests["first_token_s"]).to_numpy()[outputs > 0]
    assert np.dot(gaps.values, gaps.counts) == pytest.approx(spans.sum())
    assert record.steps["decode_tokens"].sum() + (record.events["kind"] == "first").sum() == (
        outputs.sum()
    )


def test_every_second_has_its_phase(record: Record) -> None:
    where = spent(record, record.requests["request"].tolist())
    total = where[[f"{phase}_s" for phase in PHASES]].sum(axis=1)
    assert total.to_numpy() == pytest.approx(record.requests["e2e_s"].to_numpy())
    assert where["queued_s"].to_numpy() == pytest.approx(record.requests["queue_s"].to_numpy())


def test_every_slot_is_in_the_map(record: Record) -> None:
    steps = record.steps.iloc[:1500]
    shown = slot_map(record, 0, len(steps)).state
    assert (shown == DECODING).sum(axis=0).tolist() == steps["decode_tokens"].tolist()
    assert (shown == PREFILLING).sum(axis=0).tolist() == steps["prefill_rows"].tolist()


def test_littles_law(record: Record) -> None:
    """The number waiting, over time, is the sum of the waits; the same for the seats."""
    where = spent(record, record.requests["request"].tolist())
    level = waiting(record)
    queue = float(np.dot(level.values[:-1], np.diff(level.times)))
    assert queue == pytest.approx(where["queued_s"].sum() + where["preempted_s"].sum())
    if record.config["lifecycle"] != "drain" and not record.config["run"].get("async_scheduling"):
        seats = in_steps(record.steps, record.steps["running"])
        held = float(np.dot(seats.values[:-1], np.diff(seats.times)))
        assert held + queue == pytest.approx(record.requests["e2e_s"].sum())
