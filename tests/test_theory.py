"""The engine against queueing theory: Lindley's recursion, Little's law, M/D/1."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import simpy

import lengthwise
import sim.engine
from traces import Trace


def one_token(arrivals: np.ndarray) -> Trace:
    ones = np.ones(len(arrivals), np.int64)
    return Trace(arrivals, ones, ones)


@pytest.mark.parametrize("policy", ["static", "token-aware", "continuous", "chunked-prefill"])
@pytest.mark.parametrize("load", [0.3, 0.8, 1.5])
def test_waits_are_lindleys(policy: str, load: float) -> None:
    step = 0.05
    arrivals = np.cumsum(np.random.default_rng(7).exponential(step / load, 4000))
    arrivals -= arrivals[0]
    record = lengthwise.replay(
        one_token(arrivals), policy, cost="fixed", step_ms=step * 1e3, max_num_seqs=1
    )
    wait, expected = 0.0, []
    for gap in np.diff(arrivals, prepend=arrivals[0] - 1e9):
        wait = max(0.0, wait + step - gap)
        expected.append(wait)
    assert np.abs(record.requests.queue_s - expected).max() < 1e-9


def test_mean_wait_is_that_of_m_d_1() -> None:
    step, load = 0.05, 0.5
    arrivals = np.cumsum(np.random.default_rng(1).exponential(step / load, 60_000))
    record = lengthwise.replay(
        one_token(arrivals - arrivals[0]), cost="fixed", step_ms=step * 1e3, max_num_seqs=1
    )
    theory = load * step / (2 * (1 - load))
    assert record.requests.queue_s.mean() == pytest.approx(theory, rel=0.04)


class Monitor:
    """Counts who is in the system, by itself: told of arrivals, asking the engine of finishes."""

    def __init__(self, env: simpy.Environment, replicas: list[sim.engine.Replica]) -> None:
        self.samples: list[int] = []
        self._replicas = replicas
        env.process(self._watch(env))

    def _watch(self, env: simpy.Environment) -> Iterator[simpy.Event]:
        while True:
            yield env.timeout(0.013)
            for replica in self._replicas:
                replica.feed.deliver(env.now)
            self.samples.append(sum(replica.outstanding for replica in self._replicas))
            if not env._queue:  # nobody else has anything to do
                return


@pytest.mark.parametrize("policy", ["dynamic-padding", "bucketing", "chunked-prefill"])
def test_littles_law(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L = λ W, with L counted by a process of its own and W taken from the request table."""
    monitors: list[Monitor] = []
    genuine = sim.engine.Replica

    class Watched(genuine):
        def __init__(self, env: simpy.Environment, *rest: object) -> None:
            super().__init__(env, *rest)
            monitors.append(Monitor(env, [self]))

    monkeypatch.setattr(sim.engine, "Replica", Watched)
    record = lengthwise.replay("chat", policy, limit=1500, jump=False, max_num_seqs=32)
    requests = record.requests
    span = requests.finished_s.max()
    samples = monitors[0].samples
    counted = float(np.sum(samples) * 0.013 / span)
    rate, stay = len(requests) / span, requests.e2e_s.mean()
    assert counted == pytest.approx(rate * stay, rel=0.03)
