"""Taking runs of equal steps at once changes nothing, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.step import Features
from tests import strategies
from tests.strategies import POINTS, Case, cases, cost_model, examples, same, written
from traces import Trace


@pytest.mark.parametrize("name", POINTS)
@given(data=st.data())
@examples(16)
def test_jumping_is_stepping(name: str, data: st.DataObject) -> None:
    case: Case = data.draw(cases([name]))
    assert same(written(case, jump=True), written(case, jump=False))


class Counted:
    """A cost model that counts how it is asked."""

    def __init__(self, name: str) -> None:
        self.model = cost_model(name)
        self.single = self.runs = 0

    def seconds(self, f: Features) -> float:
        self.single += 1
        return self.model.seconds(f)

    def seconds_run(self, f: Features, k: int) -> list[float]:
        self.runs += 1
        return self.model.seconds_run(f, k)


def long_case(name: str, cost: str, asynchronous: bool, outputs: Sequence[int]) -> Case:
    """A few requests, a long way apart, that decode for thousands of steps."""
    count = len(outputs)
    trace = Trace(np.arange(count) * 1.7, np.arange(1, count + 1) * 5, np.array(outputs))
    point = POINTS[name]
    settings = strategies.Settings(
        max_model_len=trace.longest,
        max_num_seqs=3,
        max_num_batched_tokens=None if point.lifecycle == "drain" else trace.longest,
        bucket_bounds=strategies.BOUNDS,
        block_size=strategies.BLOCK,
        async_scheduling=asynchronous,
    )
    if point.grouping == "token-budget":
        settings = replace(settings, max_num_batched_tokens=trace.longest)
    return Case(trace, point, settings, cost)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("cost", ["fixed", "every", "roofline"])
@pytest.mark.parametrize("name", ["bucketing-longest-drain", "fcfs-chunked-prefill"])
def test_long_runs_are_taken_at_once_and_are_still_the_same(
    name: str, cost: str, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = long_case(name, cost, asynchronous, [3000, 700, 1, 90, 2500])
    stepped = written(case, jump=False)
    counted = Counted(cost)
    monkeypatch.setattr(strategies, "cost_model", lambda _: counted)
    assert same(written(case), stepped)
    assert counted.runs > 0
    assert counted.single + counted.runs < len(stepped) / 20
