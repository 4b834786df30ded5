"""Routers: queueing theory, what they see of a replica, and where prompts of one prefix go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lengthwise
from lengthwise.config import RunConfig
from lengthwise.prepare import requests_of
from serving.record import Record
from serving.recorder import Recorder
from serving.request import Request
from sim.engine import Options, Replica, Router, simulate
from sim.routers import IMBALANCE, ROUTERS, prefix_affinity
from tests.strategies import Case, cases, cost_model, engine, examples, requests, same
from tests.test_theory import STEP, lindley, one_token, poisson
from traces import Trace
from traces.trace import BlockHashes

REPLICAS, LOAD, COUNT = 4, 0.7, 24_000


def made(name: str, case: Case, count: int) -> Router:
    return ROUTERS[name](seed=3, capacity=[case.settings.usable_blocks] * count, hashes=64)


@pytest.mark.parametrize("name", ROUTERS)
@given(case=cases(), count=st.integers(2, 3))
@examples(25)
def test_replicas_jump_as_they_step(name: str, case: Case, count: int) -> None:
    records = []
    for jump in (True, False):
        engines = [engine(case) for _ in range(count)]
        how = Options(2 if case.settings.async_scheduling else 1, jump, case.cuda_graphs)
        simulate(requests(case), engines, cost_model(case.cost), how, made(name, case, count))
        records.append([recorder for _, recorder in engines])
    assert all(same(a, b) for a, b in zip(*records, strict=True))


@given(case=cases(), count=st.integers(2, 3))
@examples(40)
def test_kv_in_use_is_what_the_last_plan_holds(case: Case, count: int) -> None:
    """One step at a time, the planner's own count of blocks is what a router is told."""

    def route(request: Request, replicas: Sequence[Replica]) -> Replica:
        for replica in replicas:
            held = replica.core.planner.blocks.used
            assert replica.kv_used(request.arrival) == held
        return replicas[request.index % count]

    how = Options(2 if case.settings.async_scheduling else 1, False, case.cuda_graphs)
    engines = [engine(case) for _ in range(count)]
    simulate(requests(case), engines, cost_model(case.cost), how, route)


# Queueing theory: one seat, one output token and a fixed step make a replica a server of M/D/1


@pytest.fixture(scope="module")
def waits() -> dict[str, Record]:
    arrivals = poisson(LOAD * REPLICAS, COUNT, seed=5)
    return {
        router: lengthwise.replay(
            one_token(arrivals),
            cost="fixed",
            step_ms=STEP * 1e3,
            max_num_seqs=1,
            replicas=REPLICAS,
            router=router,
        )
        for router in ("random", "power-of-two", "least-requests", "round-robin")
    }


def test_random_routing_makes_queues_of_their_own(waits: dict[str, Record]) -> None:
    """Each replica is Lindley's recursion on its own arrivals, and all together N times M/D/1."""
    table = waits["random"].requests
    for replica, share in table.groupby("replica"):
        own = share.arrival_s.to_numpy()
        assert np.abs(share.queue_s - lindley(own)).max() < 1e-9, replica
        assert len(share) == pytest.approx(COUNT / REPLICAS, rel=0.05)
        gaps = np.diff(own)
        assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.05)  # Poisson
    theory = LOAD * STEP / (2 * (1 - LOAD))
    assert table.queue_s.mean() == pytest.approx(theory, rel=0.08)


def test_round_robin_makes_erlang_arrivals(waits: dict[str, Record]) -> None:
    table = waits["round-robin"].requests
    assert list(table.replica[:8]) == [0, 1, 2, 3, 0, 1, 2, 3]
    gaps = np.diff(table[table.replica == 2].arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(REPLICAS**-0.5, abs=0.03)


def test_knowing_more_waits_less(waits: dict[str, Record]) -> None:
    """Least requests beats two choices, two choices beat none, by the mean and by the tail."""
    names = ("least-requests", "power-of-two", "random")
    least, two, none = (waits[name].summary["mean_queue_ms"] for name in names)
    assert least < 0.8 * two < 0.8 * 0.8 * none
    least, two, none = (waits[name].summary["p99_queue_ms"] for name in names)
    assert least < two < 0.8 * none


def test_least_requests_never_waits_while_another_is_idle(waits: dict[str, Record]) -> None:
    """It is nearly M/D/4: nobody waits who found fewer than four in the system."""
    table = waits["least-requests"].requests
    finished = np.sort(table.finished_s.to_numpy())
    arrival = table.arrival_s.to_numpy()
    inside = np.arange(len(table)) - np.searchsorted(finished, arrival, side="left")
    assert table.queue_s[inside < REPLICAS].max() < 1e-9


# Prefixes


def sessions(count: int = 12, turns: int = 10) -> Trace:
    """Conversations whose prompts grow by 64 tokens a turn, in turns."""
    rows = [(turn, session) for turn in range(turns) for session in range(count)]
    ids = [[1000 * session + i for i in range(4 * (turn + 1))] for turn, session in rows]
    arrival = np.array([turn * 4.0 + session * 0.01 for turn, session in rows])
    offsets = np.concatenate([[0], np.cumsum([len(i) for i in ids])])
    prompts = np.array([16 * len(i) for i in ids])
    hashes = BlockHashes(np.concatenate(ids), offsets, 16)
    return Trace(arrival, prompts, np.full(len(rows), 40), hashes=hashes)


def test_affinity_finds_the_prefix_where_it_is_cached() -> None:
    options: dict[str, Any] = {"replicas": 5, "enable_prefix_caching": True}
    sent = lengthwise.replay(sessions(), router="prefix-affinity", **options)
    turns = lengthwise.replay(sessions(), router="round-robin", **options)
    by_session = sent.requests.replica.to_numpy().reshape(10, 12)
    assert (by_session == by_session[0]).all()
    assert len(set(by_session[0])) > 1
    assert sent.summary["prefix_hit_rate"] > 0.75 > turns.summary["prefix_hit_rate"]


class Busy:
    """All that a router looks at here."""

    def __init__(self) -> None:
        self.outstanding = 0


def asked(*hashes: int) -> Request:
    return Request(0, 0.0, 16 * len(hashes), 1, 0, hashes)


def test_affinity_gives_way_to_load_and_forgets() -> None:
    replicas: Any = [Busy(), Busy(), Busy()]
    route = prefix_affinity(hashes=4)
    assert route(asked(1, 2), replicas) is replicas[0]
    replicas[0].outstanding = IMBALANCE
    assert route(asked(1, 2, 3), replicas) is replicas[0]
    replicas[0].outstanding += 1
    assert route(asked(1, 2, 3), replicas) is replicas[1]  # too far ahead
    replicas[0].outstanding = 1
    assert route(asked(1, 9), replicas) is replicas[1]  # the prefix was sent there last
    assert route(asked(5, 6, 7, 8), replicas) is replicas[1]  # nothing known: the idlest
    replicas[1].outstanding = 1
    assert route(asked(1), replicas) is replicas[2]  # forgotten: four hashes came since


# Groups


def test_a_group_is_an_engine_with_its_own_settings() -> None:
    trace = lengthwise.load_trace("chat", limit=120)
    groups = ({"replicas": 1, "max-num-seqs": 4}, {"replicas": 2, "policy": "static", "tp": 2})
    shared = {"max_num_seqs": 64, "max_model_len": 16384}
    record = lengthwise.replay(trace, groups=groups, router="round-robin", **shared)
    for member, options in ((0, {"max_num_seqs": 4}), (2, {"policy": "static", "tp": 2})):
        rows = np.arange(member, 120, 3)
        alone = lengthwise.replay(trace.take(rows), **shared | options)
        own = record.requests[record.requests.replica == member]
        assert own.finished_s.tolist() == alone.requests.finished_s.tolist()
        steps = record.steps[record.steps.replica == member]
        assert steps.flops.tolist() == alone.steps.flops.tolist()
    assert record.config["gpus"] == 5
    assert record.config["policy"] == "several policies"
    assert record.summary["kv_peak_fraction"] is None
    assert [m["max_num_seqs"] for m in record.config["members"]] == [4, 64, 64]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 2, "router": "least-request"}, "did you mean least-requests"),
        ({"router": "random"}, "--router random: one replica needs none"),
        ({"replicas": 2, "router": "prefix-affinity"}, "add --enable-prefix-caching"),
        ({"replicas": 0}, "--replicas 0"),
        ({"groups": ()}, "give at least one group"),
        ({"groups": ({"replicas": 2},), "replicas": 3}, "the groups say how many"),
        ({"groups": ({"hardwear": "h100"},)}, "group 1, hardwear: unknown; did you mean hardware"),
        ({"groups": ({}, {"limit": 3})}, "groups, group 2, limit: unknown"),
        ({"groups": ({}, {"replicas": 0})}, "--replicas 0"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^(--|groups)") as error:
        lengthwise.replay("chat", limit=20, **options)
    assert message in str(error.value)


def test_requests_are_made_as_they_arrive() -> None:
    """No more of them exist than are in flight, whatever the length of the trace."""
    trace = one_token(poisson(REPLICAS * 0.5, 20_000, seed=1))
    alive = most = 0

    class Counted(Request):
        __slots__ = ()

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def counted() -> Any:
        nonlocal alive, most
        for r in requests_of(trace, 16, False):
            alive += 1
            most = max(most, alive)
            yield Counted(r.index, r.arrival, r.prompt, r.output)

    ready = lengthwise.cluster.prepare_run(
        RunConfig.of(cost="fixed", step_ms=STEP * 1e3, max_num_seqs=1, replicas=REPLICAS), trace
    )
    engines = [lengthwise.api.make_engine(member, Recorder()) for member in ready.members]
    simulate(counted(), engines, ready.cost, None, ROUTERS["least-requests"]())
    assert alive <= 2 * REPLICAS
    assert most < 60
