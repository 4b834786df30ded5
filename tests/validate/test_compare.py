"""The figures of a comparison, against their definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lengthwise.validate.compare import compare, light, peer_wape
from lengthwise.validate.measured import Measured, queue_depth
from lengthwise.validate.of_record import of_record
from lengthwise.validate.steps import first_difference, plan_cost
from serving.record import Record
from tests.sim.test_cost_models import fitted
from tests.validate.made import as_measured, cost_file, simulated, trace


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Measured, Record]:
    """One run, and another at a slower cost."""
    folder = tmp_path_factory.mktemp("pair")
    requests = trace()
    mine = simulated(requests, cost_file(folder))
    slow = cost_file(folder, "slow.json", overhead_layer_s=1e-4)
    return of_record(as_measured(mine), "made", requests), simulated(requests, slow)


def _record(measured: Measured) -> Record:
    assert measured.record is not None
    return measured.record


def test_figures_are_numpys(pair: tuple[Measured, Record]) -> None:
    measured, predicted = pair
    found = compare(measured, predicted)
    assert found.requests == 40
    for name, column in (("ttft", "ttft_s"), ("tpot", "tpot_s"), ("e2e", "e2e_s")):
        m = measured.requests[column].to_numpy()
        p = predicted.requests[column].to_numpy()
        m, p = m[~np.isnan(m)], p[~np.isnan(p)]
        assert found.error[name]["mean"] == pytest.approx(p.mean() / m.mean() - 1)
        for figure, q in (("p50", 50), ("p90", 90), ("p99", 99)):
            assert found.measured[name][figure] == pytest.approx(np.percentile(m, q))
            assert found.predicted[name][figure] == pytest.approx(np.percentile(p, q))
        assert found.wape[name] == pytest.approx(np.abs(p - m).sum() / m.sum())
    tokens = measured.requests["output_tokens"].sum()
    end = (measured.requests["arrival_s"] + measured.requests["e2e_s"]).max()
    assert found.measured["throughput"]["mean"] == pytest.approx(tokens / end)
    assert found.measured["itl"]["p50"] == pytest.approx(
        _record(measured).summary["median_itl_ms"] / 1e3
    )


def test_only_requests_that_ended_on_both_sides_count(pair: tuple[Measured, Record]) -> None:
    measured, predicted = pair
    table = measured.requests.copy()
    table.loc[[3, 7], ["ttft_s", "tpot_s", "e2e_s"]] = np.nan
    found = compare(replace(measured, requests=table), predicted)
    assert (found.requests, found.left_out) == (38, 2)
    kept = predicted.requests.drop(index=[3, 7])
    assert found.predicted["e2e"]["mean"] == pytest.approx(kept["e2e_s"].mean())
    none = compare(measured, predicted, np.zeros(40, bool))
    assert none.requests == 0
    assert none.error["ttft"]["mean"] is None
    assert none.wape["ttft"] is None


def test_depth_is_counted_request_by_request() -> None:
    random = np.random.default_rng(0)
    arrival = np.sort(random.integers(0, 40, 80)) / 4  # ties among them
    ttft = random.exponential(0.7, 80)
    ttft[random.random(80) < 0.1] = np.nan
    table = pd.DataFrame({"arrival_s": arrival, "ttft_s": ttft})
    first = arrival + ttft
    expected = [
        sum(1 for j in range(i) if not np.isnan(first[j]) and first[j] > arrival[i])
        for i in range(80)
    ]
    assert queue_depth(table).tolist() == expected
    assert 0 < expected.count(0) < 80


def test_light_load_and_peer(pair: tuple[Measured, Record]) -> None:
    measured, _ = pair
    empty = light(measured)
    assert empty[0]
    assert 0 < empty.sum() < 40
    peer = 1.1 * measured.requests[["ttft_s", "tpot_s", "e2e_s"]]
    found = peer_wape(replace(measured, peer=peer), empty)
    assert found == {name: pytest.approx(0.1) for name in ("ttft", "tpot", "e2e")}
    assert peer_wape(measured, empty) is None


def test_the_plan_given_costs_what_the_model_says(pair: tuple[Measured, Record]) -> None:
    measured, _ = pair
    record = _record(measured)
    same = plan_cost(record, fitted())
    assert same is not None
    assert same.error == pytest.approx(0, abs=1e-9)
    assert same.p90_error == pytest.approx(0, abs=1e-9)
    slower = plan_cost(record, fitted(overhead_layer_s=1e-4))
    assert slower is not None
    assert slower.predicted_s - same.predicted_s == pytest.approx(32e-4 * len(record.steps))


def test_the_hosts_time_between_steps_counts(pair: tuple[Measured, Record]) -> None:
    measured, _ = pair
    record = _record(measured)
    later = record.steps.copy()
    later["start_s"] += 0.25 * (later["end_s"] - later["start_s"])  # the host took a quarter
    late = Record(record.config, record.requests, later, record.events)
    found = plan_cost(late, fitted())
    assert found is not None
    assert found.by_region["mixed"] == pytest.approx(0, abs=1e-9)
    assert found.by_region["decode"] == pytest.approx(0, abs=1e-9)


def test_plans_part_where_they_part(pair: tuple[Measured, Record], tmp_path: Any) -> None:
    measured, predicted = pair
    mine = _record(measured)
    assert first_difference(mine, mine) is None
    found = first_difference(mine, predicted)
    assert found is not None

    def plan(record: Record, step: int) -> set[tuple[str, int, int]]:
        events = record.events[record.events["step"] == step]
        return set(zip(events["kind"], events["request"], events["tokens"], strict=True))

    steps = range(max(len(mine.steps), len(predicted.steps)))
    expected = next(s for s in steps if plan(mine, s) != plan(predicted, s))
    assert found.step == expected
    said = {(e["kind"], e["request"], e["tokens"]) for e in found.measured.events}
    assert said == plan(mine, expected)
    early = mine.events[mine.events["step"] < 20]
    shorter = Record(mine.config, mine.requests, mine.steps, early)
    cut = first_difference(mine, shorter)
    assert cut is not None
    assert cut.step >= 20
    assert not cut.predicted.events
