"""Memory so scarce that a scheduler could preempt for ever: all finish, in bounded steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from lengthwise import Record, replay
from tests.strategies import POINTS, Case, cases, examples, naive, real
from traces import Trace
from traces.trace import BlockHashes

BLOCK = 16
Rows = list[tuple[float, int, int]]


def trace(rows: Rows, priorities: Any, caching: bool) -> Trace:
    arrivals, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    hashes = None
    if caching:  # every other prompt begins alike
        counts = -(-prompts // BLOCK)
        ids = [np.arange(n) + (0 if i % 2 else 1000) for i, n in enumerate(counts)]
        hashes = BlockHashes(np.concatenate(ids), np.r_[0, np.cumsum(counts)], BLOCK)
    return Trace(arrivals.astype(float), prompts, outputs, priorities, hashes)


def run(rows: Rows, blocks: int, mode: str, caching: bool, **options: Any) -> Record:
    policy, order, how = mode.split()
    ranks = np.arange(len(rows)) % 3
    if order == "ties":  # all as urgent as each other, and most of them arrived at once
        order, ranks = "priority", np.zeros(len(rows), np.int64)
    return replay(
        trace(rows, ranks, caching),
        policy,
        cost="fixed",
        step_ms=10.0,
        order=order,
        async_scheduling=how == "async",
        enable_prefix_caching=caching,
        num_gpu_blocks_override=blocks + 1,
        **options,
    )


def most_steps(rows: Rows, chunk: int) -> int:
    """At worst every output token costs its request one whole recompute.

    A request that is preempted has made a token since it was admitted, or it was in its prompt,
    and then another went on in its place: so there are at most Σ (outputs + 1) lives, each of them
    as many chunks as its tokens need, one step that samples, one empty step where the victim is
    who asked, and one behind its end with two steps in flight.
    """
    return sum((output + 1) * (-(-(prompt + output) // chunk) + 3) for _, prompt, output in rows)


MODES = [
    f"{policy} {order} {how}"
    for policy in ("continuous", "chunked-prefill")
    for order in ("fcfs", "priority", "ties", "shortest")
    for how in ("sync", "async")
]

TRAPS: dict[str, tuple[Rows, int]] = {
    "contexts near the KV size": ([(0.0, 100 + i, 120) for i in range(12)], 15),
    "one request that fills it": ([(0.0, 200, 121), (0.0, 16, 200), (0.5, 16, 10)], 20),
    "a burst of equals that each fit alone": ([(0.0, 64, 192)] * 20, 16),
    "two that grow into each other": ([(0.0, 16, 240), (0.0, 16, 240)], 16),
    "full blocks to the last token": ([(0.0, 16 * 4, 16 * 4 + 1)] * 9, 8),
    "prompts that fill it, one output": ([(0.0, 256, 1), (0.0, 255, 2), (0.0, 256, 0)] * 3, 16),
}


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("trap", TRAPS)
def test_everything_finishes(trap: str, mode: str, caching: bool) -> None:
    rows, blocks = TRAPS[trap]
    record = run(rows, blocks, mode, caching)
    assert (record.requests.status == "finished").all(), record.requests
    assert len(record.steps) <= most_steps(rows, 8192)
    assert record.steps.kv_blocks_used.max() <= blocks


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.startswith("chunked")])
@pytest.mark.parametrize(
    "limits",
    [
        {"max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 40, "long_prefill_token_threshold": 8},
        {"max_num_batched_tokens": 64, "watermark": 0.3},
    ],
)
@pytest.mark.parametrize("trap", [name for name in TRAPS if "burst" not in name])
def test_nor_do_prompts_in_small_chunks_chase_each_other(
    trap: str, mode: str, limits: dict[str, Any]
) -> None:
    rows, blocks = TRAPS[trap]
    record = run(rows, blocks, mode, False, **limits)
    assert (record.requests.status == "finished").all(), record.requests
    chunk = limits.get("long_prefill_token_threshold", limits["max_num_batched_tokens"])
    assert len(record.steps) <= most_steps(rows, chunk)


@given(case=cases([name for name in POINTS if not name.endswith("drain")], scarce=True))
@examples(50)
def test_whatever_is_drawn_ends_within_the_bound(case: Case) -> None:
    table, steps, _ = real(case)
    rows = list(zip(table.arrival_s, table.prompt_tokens, table.output_tokens, strict=True))
    limits = case.settings
    chunk = min(limits.max_num_batched_tokens or 1, limits.long_prefill_token_threshold or 10**6)
    assert len(steps) <= most_steps(rows, chunk)
    assert len(naive(case).steps) == len(steps)


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("mode", [mode for mode in MODES if "fcfs" in mode])
def test_the_oldest_is_never_preempted_under_fcfs(mode: str, caching: bool) -> None:
    record = run([(0.0, 64, 192)] * 20, 16, mode, caching)
    assert record.requests.preemptions[0] == 0
    assert record.requests.finished_s.is_monotonic_increasing
    assert record.summary["preemptions"] > 0


@pytest.mark.parametrize("how", ["sync", "async"])
def test_the_most_urgent_is_never_preempted_under_priority(how: str) -> None:
    rows = [(i * 1e-6, 64, 192) for i in range(20)]  # no ties: of equals the first is the victim
    record = run(rows, 16, f"chunked-prefill priority {how}", False)
    assert record.requests.preemptions[0] == 0  # priority 0, and the first of those
    assert record.summary["preemptions"] > 0
    assert record.requests.finished_s[0] == record.requests.finished_s.min()


@pytest.mark.parametrize("mode", MODES)
def test_one_token_too_many_is_refused_and_the_rest_goes_on(mode: str) -> None:
    record = run([(0.0, 200, 122), (0.0, 200, 121), (1.0, 321, 0)], 20, mode, False)
    assert list(record.requests.status) == ["refused", "finished", "refused"]
    for index, total in ((0, 322), (2, 321)):
        assert record.requests.reason[index] == (
            f"prompt + output is {total} tokens and needs 21 KV blocks, over the 20 usable ones of "
            "16 tokens"
        )
