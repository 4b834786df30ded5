"""Taking runs of equal steps at once changes nothing, and a driver by hand does the same."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.assemble import assemble
from serving.step import Wait
from sim.graphs import pad_decode
from tests.strategies import (
    POINTS,
    Case,
    Tables,
    cases,
    cost_model,
    engine,
    examples,
    real,
    requests,
    same,
)


@pytest.mark.parametrize("name", POINTS)
@given(data=st.data())
@examples(25)
def test_jumping_is_stepping(name: str, data: st.DataObject) -> None:
    case: Case = data.draw(cases([name]))
    assert same(real(case, jump=True), real(case, jump=False))


def by_hand(case: Case) -> Tables:
    """A driver of its own: no SimPy, one or two steps in flight, runs cut at arrivals."""
    core, recorder = engine(case)
    cost, depth = cost_model(case.cost), 2 if case.settings.async_scheduling else 1
    ahead = deque(requests(case))
    flight: deque[tuple[object, float]] = deque()
    now = last = 0.0

    def take_in(until: float) -> None:
        while ahead and ahead[0].arrival <= until:
            core.add(ahead.popleft())

    while True:
        planned: object = Wait()
        while len(flight) < depth:
            take_in(now)
            planned = core.plan(now)
            if isinstance(planned, Wait):
                break
            step = planned
            if case.cuda_graphs:
                step = step._replace(features=pad_decode(step.features))
            start = max(now, last)
            most = 1 if step.prefill or flight else core.run_length(50)
            ends, f = [], step.features
            for _ in range(most):
                ends.append((ends[-1] if ends else start) + cost.seconds(f))
                f = f._replace(
                    decode_useful_pairs=f.decode_useful_pairs + f.decode_tokens,
                    decode_computed_pairs=f.decode_computed_pairs + f.decode_rows,
                )
            stops = [t for t in (core.planner.wake, ahead[0].arrival if ahead else None) if t]
            for stop in stops:  # the plan behind the step that ends at or after it is another
                plans = [start, *ends] if depth > 1 else ends
                most = min(most, 1 + bisect_left(plans, stop))
            step, used = core.advance(step, most)
            first = (
                planned
                if not case.cuda_graphs
                else planned._replace(features=pad_decode(planned.features))
            )
            recorder.run(first, start, ends[:most], used)
            last = ends[most - 1]
            if most > 1 and depth > 1:
                now = ends[most - 2]
            flight.append((step, last))
        if flight:
            step, end = flight.popleft()
            core.complete(step)
            now = max(now, end) if depth == 1 or not flight else end
        else:
            times = [t for t in (planned.until, ahead[0].arrival if ahead else None)
                     if t is not None]  # fmt: skip
            if not times:
                return assemble(case.trace, [recorder])
            now = max(now, min(times))


@given(case=cases())
@examples(150)
def test_a_driver_by_hand_makes_the_same_record(case: Case) -> None:
    requests_, steps, events = by_hand(case)
    theirs = real(case)
    drop = ["preempted"]  # a run by hand is written as a run, also where it is one step
    assert requests_.equals(theirs[0])
    assert steps.drop(columns=drop).equals(theirs[1].drop(columns=drop))
    assert events.equals(theirs[2])
