"""Memory so scarce that a scheduler could preempt for ever: all finish, in bounded steps."""

from __future__ import annotations

import numpy as np
import pytest

from lengthwise import Record, replay
from traces import Trace
from traces.trace import BlockHashes

BLOCK = 16


def run(rows: list[tuple[float, int, int]], blocks: int, mode: str, caching: bool) -> Record:
    arrivals, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    hashes = None
    if caching:
        counts = -(-prompts // BLOCK)
        offsets = np.r_[0, np.cumsum(counts)]
        ids = np.concatenate([np.arange(c) + (0 if i % 2 else 1000) for i, c in enumerate(counts)])
        hashes = BlockHashes(ids, offsets, BLOCK)
    policy, order, asynchronous = mode.split()
    return replay(
        Trace(arrivals.astype(float), prompts, outputs, np.arange(len(rows)) % 3, hashes),
        policy,
        cost="fixed",
        step_ms=10.0,
        order=order,
        async_scheduling=asynchronous == "async",
        enable_prefix_caching=caching,
        num_gpu_blocks_override=blocks + 1,
    )


MODES = [
    f"{policy} {order} {how}"
    for policy in ("continuous", "chunked-prefill")
    for order in ("fcfs", "priority")
    for how in ("sync", "async")
]

TRAPS = {
    "contexts near the KV size": ([(0.0, 100 + i, 120) for i in range(12)], 15),
    "one request that fills it": ([(0.0, 200, 121), (0.0, 16, 200), (0.5, 16, 10)], 20),
    "a burst of equals that each fit alone": ([(0.0, 64, 192)] * 40, 16),
    "two that grow into each other": ([(0.0, 16, 240), (0.0, 16, 240)], 16),
    "full blocks to the last token": ([(0.0, 16 * 4, 16 * 4 + 1)] * 9, 8),
}


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("trap", TRAPS)
def test_everything_finishes(trap: str, mode: str, caching: bool) -> None:
    """At worst every request runs alone and each of its preemptions costs a whole recompute.

    The oldest (most urgent) request is never a victim of a later one, so a request is preempted
    less often than there are tokens made before it is the oldest: the bound below is generous.
    """
    rows, blocks = TRAPS[trap]
    record = run(rows, blocks, mode, caching)
    assert (record.requests.status == "finished").all(), record.requests
    tokens = sum(output for _, _, output in rows)
    assert len(record.steps) <= 4 * tokens + 50
    assert record.steps.kv_blocks_used.max() <= blocks


@pytest.mark.parametrize("mode", MODES)
def test_the_oldest_is_never_preempted_under_fcfs(mode: str) -> None:
    if "priority" in mode:
        return
    record = run([(0.0, 64, 192)] * 20, 16, mode, False)
    assert record.requests.preemptions[0] == 0
    assert record.summary["preemptions"] > 0


def test_one_token_too_many_is_refused() -> None:
    record = run([(0.0, 200, 122), (0.0, 200, 121)], 20, "chunked-prefill fcfs sync", False)
    assert list(record.requests.status) == ["refused", "finished"]
    assert "needs 21 KV blocks" in record.requests.reason[0]
