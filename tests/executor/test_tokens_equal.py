"""A policy never changes what a request generates: greedy tokens alone and in any batch."""

from __future__ import annotations

import numpy as np
import pytest

from executor.execute import Engine, Measured
from executor.tokens import Tokens
from policies.compose import KNOWN, Point
from serving.recorder import ADMIT, PREEMPT
from tests.executor.nano import alone, engine, mixed, run
from traces.trace import Trace

LAYOUTS = {f"drain-{name}": Point("fcfs", name, "drain") for name in ("bucket", "packed")}
FEW = 17  # usable blocks; the longest request needs 12


@pytest.fixture(scope="module")
def model() -> Engine:
    return engine()


@pytest.fixture(scope="module")
def plain(model: Engine) -> list[list[int]]:
    """What each of the mixed requests generates, by definition."""
    trace = mixed()
    tokens = run(model, trace, "continuous").tokens
    return expected(model, trace, tokens)


def expected(model: Engine, trace: Trace, tokens: Tokens) -> list[list[int]]:
    counts = trace.output_tokens.tolist()
    return [alone(model, tokens.prompt(i).tolist(), n) for i, n in enumerate(counts)]


def outputs(found: Measured, trace: Trace) -> list[list[int]]:
    return [found.tokens.output(i).tolist() for i in range(len(trace))]


def count(found: Measured, kind: int) -> int:
    return int((found.recorder.event_rows()[:, 2] == kind).sum())


def test_what_is_compared_depends_on_the_whole_prompt(
    model: Engine, plain: list[list[int]]
) -> None:
    """Else equal tokens would prove nothing: the first token of a prompt decides its output."""
    trace = mixed()
    tokens = run(model, trace, "continuous").tokens
    changed = 0
    asked = [i for i in range(len(trace)) if trace.output_tokens[i] > 4]
    for i in asked:
        prompt = tokens.prompt(i).tolist()
        prompt[0] = (prompt[0] + 1) % 211
        changed += alone(model, prompt, int(trace.output_tokens[i])) != plain[i]
    assert changed > 0.8 * len(asked)


@pytest.mark.parametrize("policy", [*KNOWN, *LAYOUTS])
def test_every_policy_and_layout(model: Engine, plain: list[list[int]], policy: str) -> None:
    trace = mixed()
    found = run(model, trace, {**KNOWN, **LAYOUTS}[policy])
    assert outputs(found, trace) == plain


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("policy", ["continuous", "chunked-prefill"])
def test_preempted(model: Engine, plain: list[list[int]], policy: str, asynchronous: bool) -> None:
    trace = mixed()
    budget = 48 if policy == "chunked-prefill" else None
    found = run(
        model, trace, policy, FEW + 1, max_num_batched_tokens=budget, async_scheduling=asynchronous
    )
    assert count(found, PREEMPT) > 5
    assert outputs(found, trace) == plain


@pytest.mark.parametrize("mixed_chunk", [False, True])
def test_retracted(model: Engine, mixed_chunk: bool) -> None:
    """SGLang's prefill batches, chunks and retractions on real pages."""
    random = np.random.default_rng(5)
    trace = Trace(np.zeros(24), random.integers(1, 20, 24), random.integers(50, 60, 24))
    found = run(
        model, trace, "sglang", FEW + 1, max_num_batched_tokens=24,
        enable_mixed_chunk=mixed_chunk, schedule_conservativeness=0.0,
    )  # fmt: skip
    assert count(found, PREEMPT) > 3
    assert not found.recorder.refused
    assert outputs(found, trace) == expected(model, trace, found.tokens)


@pytest.mark.parametrize("policy", ["static", "bucketing"])
def test_drains_with_two_steps_in_flight(
    model: Engine, plain: list[list[int]], policy: str
) -> None:
    found = run(model, mixed(), policy, async_scheduling=True)
    assert outputs(found, mixed()) == plain


@pytest.mark.parametrize(
    ("hash_tokens", "asynchronous"), [(16, False), (32, False), (32, True), (24, True)]
)
def test_cached_prefixes(model: Engine, hash_tokens: int, asynchronous: bool) -> None:
    """One, two and one and a half KV blocks a hash, with evictions and preemptions."""
    trace = mixed(24, hash_tokens=hash_tokens)
    found = run(
        model, trace, "chunked-prefill", 21, max_num_batched_tokens=64,
        enable_prefix_caching=True, async_scheduling=asynchronous,
    )  # fmt: skip
    events = found.recorder.event_rows()
    assert count(found, PREEMPT) > 0
    assert np.count_nonzero(events[events[:, 2] == ADMIT, 3]) > 5  # admitted with hits
    assert outputs(found, trace) == expected(model, trace, found.tokens)
