"""The simulated clock: waking, sleeping, several replicas, and policies that never end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.assemble import assemble
from serving.core import Core
from serving.recorder import Recorder
from serving.request import Request
from serving.step import Features, Wait
from sim.engine import Options, PolicyError, Replica, Router, simulate
from sim.fixed import FixedCost
from sim.graphs import CAPTURE_SIZES, pad_decode, padded_decode_slots
from tests.strategies import (
    POINTS,
    Case,
    Settings,
    cases,
    cost_model,
    engine,
    examples,
    requests,
    same,
)
from traces import Trace


def least(request: Request, replicas: Sequence[Replica]) -> Replica:
    """To whoever has the fewest outstanding requests, the first of equals."""
    return min(replicas, key=lambda replica: replica.outstanding)


def in_turn(request: Request, replicas: Sequence[Replica]) -> Replica:
    return replicas[request.index % len(replicas)]


def routed(case: Case, count: int, route: Router, jump: bool) -> list[Recorder]:
    engines = [engine(case) for _ in range(count)]
    how = Options(2 if case.settings.async_scheduling else 1, jump, case.cuda_graphs)
    simulate(requests(case), engines, cost_model(case.cost), how, route)
    return [recorder for _, recorder in engines]


@pytest.mark.parametrize("route", [least, in_turn])
@given(case=cases(), count=st.integers(2, 3))
@examples(40)
def test_replicas_jump_as_they_step(route: Router, case: Case, count: int) -> None:
    jumped, stepped = (routed(case, count, route, jump) for jump in (True, False))
    assert all(same(a, b) for a, b in zip(jumped, stepped, strict=True))


@given(case=cases(), count=st.integers(2, 3))
@examples(25)
def test_in_turn_each_replica_is_an_engine_of_its_own(case: Case, count: int) -> None:
    """What a replica does with its share is what one engine does with only that share."""
    together = routed(case, count, in_turn, True)
    for part, recorder in enumerate(together):
        own, alone = engine(case)
        share = (r for r in requests(case) if r.index % count == part)
        how = Options(2 if case.settings.async_scheduling else 1, True, case.cuda_graphs)
        simulate(share, [(own, alone)], cost_model(case.cost), how)
        assert same(alone, recorder)


def two_replicas(rows: list[tuple[float, int, int]], jump: bool) -> list[int]:
    """Which replica each request goes to: static batches of one, 50 ms a step."""
    arrivals, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    trace = Trace(arrivals.astype(float), prompts, outputs)
    settings = Settings(max_model_len=trace.longest, max_num_seqs=1)
    case = Case(trace, POINTS["fcfs-limit-drain"], settings)
    return list(assemble(trace, routed(case, 2, least, jump))[0].replica)


@pytest.mark.parametrize("jump", [True])
def test_a_router_sees_replicas_as_of_the_arrival(jump: bool) -> None:
    rows = [(0.0, 1, n) for n in (0, 0, 0, 40, 0, 0)]
    rows += [(1.0, 1, 0), (1.0, 1, 0), (1.01, 1, 0), (1.02, 1, 0)]
    # at 1 s replica 1 holds two for another second; replica 0 takes three, the first until 1.05 s
    assert two_replicas(rows, jump) == [0, 1, 0, 1, 0, 1, 0, 0, 0, 1]


def test_the_table_of_several_replicas_is_in_order_of_time() -> None:
    trace = Trace(np.arange(9) * 0.03, np.full(9, 4), np.full(9, 5))
    case = Case(trace, POINTS["fcfs-chunked-prefill"], Settings(max_model_len=9, max_num_seqs=2))
    table, steps, events = assemble(trace, routed(case, 3, in_turn, True))
    assert list(table.replica) == [0, 1, 2] * 3
    assert steps.start_s.is_monotonic_increasing
    assert set(steps.replica) == {0, 1, 2}
    assert len(events[events.kind == "finish"]) == 9


# Waking and sleeping


class Alarm:
    """Takes one request at a time, and only at given times."""

    def __init__(self, *times: float) -> None:
        self.times = times

    def form(self, queue: object, room: object, now: float) -> Wait | None:
        later = [t for t in self.times if t > now]
        if now in self.times and queue.peek() is not None:
            room.take(queue.pop())
            return None
        return Wait(until=later[0]) if later else Wait()


def alarmed(make: Callable[[], Alarm], arrivals: Sequence[float], **how: bool) -> list[float]:
    trace = Trace(np.array(arrivals), np.ones(len(arrivals), int), np.ones(len(arrivals), int))
    case = Case(trace, POINTS["fcfs-longest-drain"], Settings(max_model_len=2))
    core, recorder = engine(case)
    core.planner.grouping = make()
    simulate(requests(case), [(core, recorder)], FixedCost(0.25), Options(**how))
    return assemble(trace, [recorder])[0].scheduled_s.tolist()


def test_a_policy_is_woken_when_it_asks() -> None:
    assert alarmed(lambda: Alarm(0.1, 2.0, 3.5), [0.0, 0.0, 1.0]) == [0.1, 2.0, 3.5]


def test_an_arrival_wakes_it_before() -> None:
    assert alarmed(lambda: Alarm(1.0, 9.0), [0.0, 1.0]) == [1.0, 9.0]


def test_requests_that_nobody_will_take_are_an_error() -> None:
    with pytest.raises(PolicyError, match=r"^1 requests are left waiting, and the policy asks for"):
        alarmed(lambda: Alarm(0.0), [0.0, 0.0])


def test_asking_to_be_woken_in_the_past_is_an_error() -> None:
    class Late(Alarm):
        def form(self, queue: object, room: object, now: float) -> Wait | None:
            return None if queue.peek() is None else Wait(until=now)

    with pytest.raises(PolicyError, match=r"^the policy asks at 0\.5 s to be woken at 0\.5 s"):
        alarmed(Late, [0.5])


def test_the_garbage_collector_is_left_as_it_was() -> None:
    for on in (True, False):
        (gc.enable if on else gc.disable)()
        try:
            alarmed(lambda: Alarm(0.0), [0.0])
            assert gc.isenabled() is on
        finally:
            gc.enable()


def test_an_engine_without_requests_does_nothing() -> None:
    case = Case(
        Trace(np.zeros(1), np.ones(1, int), np.ones(1, int)),
        POINTS["fcfs-longest-drain"],
        Settings(max_model_len=2),
    )
    core, recorder = engine(case)
    simulate(iter(()), [(core, recorder)], FixedCost(0.25))
    assert len(recorder) == 0
    assert isinstance(core, Core)


# CUDA graphs


@pytest.mark.parametrize(
    ("rows", "slots"), [(0, 0), (1, 1), (3, 4), (5, 8), (8, 8), (9, 16), (257, 272), (513, 513)]
)
def test_decodes_round_up_to_a_captured_size(rows: int, slots: int) -> None:
    assert padded_decode_slots(rows) == slots
    assert slots in (0, 513) or slots in CAPTURE_SIZES


def test_only_steps_of_decodes_alone_run_as_graphs() -> None:
    mixed = Features(prefill_slots=4, decode_slots=3)
    assert pad_decode(mixed) == mixed
    assert pad_decode(Features()) == Features()
    assert pad_decode(Features(decode_slots=3, decode_rows=3)) == Features(
        decode_slots=4, decode_rows=3
    )
