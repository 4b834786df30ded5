"""The engine against queueing theory: Lindley's recursion, Little's law, M/D/1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import simpy
from numpy.typing import NDArray

import lengthwise
import sim.engine
from policies.compose import NAMED
from serving.request import Request
from traces import Trace

STEP = 0.05


def one_token(arrivals: NDArray[np.float64]) -> Trace:
    ones = np.ones(len(arrivals), np.int64)
    return Trace(arrivals, ones, ones)


def poisson(load: float, count: int, seed: int) -> NDArray[np.float64]:
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(STEP / load, count))
    return arrivals - arrivals[0]


def lindley(arrivals: NDArray[np.float64]) -> list[float]:
    """W(n+1) = max(0, W(n) + S - A(n)): the waits in a queue with one server."""
    waits = [0.0]
    for gap in np.diff(arrivals):
        waits.append(max(0.0, waits[-1] + STEP - gap))
    return waits


@pytest.mark.parametrize("load", [0.3, 0.8, 1.5])
@pytest.mark.parametrize("policy", NAMED)
def test_waits_are_lindleys(policy: str, load: float) -> None:
    """One seat, one output token and a fixed step: every policy is a queue with one server."""
    arrivals = poisson(load, 2000, seed=7)
    record = lengthwise.replay(
        one_token(arrivals), policy, cost="fixed", step_ms=STEP * 1e3, max_num_seqs=1
    )
    assert np.abs(record.requests.queue_s - lindley(arrivals)).max() < 1e-9


def test_waits_of_bursts_are_lindleys() -> None:
    """Ties, gaps of exactly a step, and idle spells."""
    gaps = np.random.default_rng(3).choice([0.0, STEP, 2 * STEP, 0.01, 3.0], 3000)
    arrivals = np.cumsum(gaps) - gaps[0]
    record = lengthwise.replay(
        one_token(arrivals), "bucketing", cost="fixed", step_ms=STEP * 1e3, max_num_seqs=1
    )
    assert np.abs(record.requests.queue_s - lindley(arrivals)).max() < 1e-9


def test_mean_wait_is_that_of_m_d_1() -> None:
    """Two million arrivals are in `benchmarks/theory.py`."""
    load = 0.5
    record = lengthwise.replay(
        one_token(poisson(load, 20_000, seed=1)), cost="fixed", step_ms=STEP * 1e3, max_num_seqs=1
    )
    theory = load * STEP / (2 * (1 - load))
    assert record.requests.queue_s.mean() == pytest.approx(theory, rel=0.05)


class Monitor:
    """Counts who is in the system, by itself: one more at an arrival, one less at a finish.

    A SimPy process of its own wakes for every arrival of the trace; finishes it is told of at the
    moment at which the engine lets them go. It never sees the request table.
    """

    def __init__(self, env: simpy.Environment, arrivals: Sequence[float]) -> None:
        self.env = env
        self.inside = 0
        self.area = 0.0  # integral of the number inside over time, s
        self._since = 0.0
        env.process(self._watch(arrivals))

    def _watch(self, arrivals: Sequence[float]) -> Iterator[simpy.Event]:
        for arrival in arrivals:
            yield self.env.timeout(max(0.0, arrival - self.env.now))
            self.change(1)

    def change(self, by: int) -> None:
        self.area += self.inside * (self.env.now - self._since)
        self._since = self.env.now
        self.inside += by


@pytest.mark.parametrize("jump", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("policy", NAMED)
def test_littles_law(
    policy: str, asynchronous: bool, jump: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L = λ W, with L counted by the monitor, λ and W taken from the record."""
    trace = lengthwise.load_trace("chat", limit=250)
    monitors: list[Monitor] = []
    genuine = sim.engine.Replica

    class Watched(genuine):
        def __init__(self, env: simpy.Environment, *rest: object) -> None:
            super().__init__(env, *rest)
            monkeypatch.setattr(env, "peek", lambda: 0.0)  # an event a step, for the clock's sake
            monitor = Monitor(env, trace.arrival_s.tolist())
            monitors.append(monitor)
            complete = self.core.complete

            def watched(step: object) -> Sequence[Request]:
                finished = complete(step)
                if finished:
                    monitor.change(-len(finished))
                return finished

            self.core.complete = watched

    monkeypatch.setattr(sim.engine, "Replica", Watched)
    record = lengthwise.replay(
        trace, policy, jump=jump, async_scheduling=asynchronous, max_num_seqs=32
    )
    requests = record.requests
    assert (requests.status == "finished").all()
    span = requests.finished_s.max() - requests.arrival_s.min()
    rate, stay = len(requests) / span, requests.e2e_s.mean()
    assert monitors[0].inside == 0
    assert monitors[0].area / span == pytest.approx(rate * stay, rel=1e-9)
