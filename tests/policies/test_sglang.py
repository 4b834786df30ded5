"""SGLang's planner beyond its recordings: refusals, jumps, sums, and runs that must end well."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policies.sglang import (
    Memory,
    NewTokenRatio,
    PrefillAdder,
    RunningBatch,
    Sglang,
    SglangLimits,
    Verdict,
    batch,
    retract,
)
from policies.sglang.limits import (
    default_chunked_prefill_size,
    default_max_running_requests,
    default_mem_fraction_static,
)
from serving.core import Core
from serving.recorder import FINISH, FIRST, PREEMPT, Recorder
from serving.request import Request, Status
from serving.step import Step
from sim.engine import Options, simulate
from sim.fixed import FixedCost

LIMITS = SglangLimits(
    max_total_tokens=1000,
    context_len=4096,
    max_running_requests=16,
    chunked_prefill_size=128,
    disable_radix_cache=True,
)


def some_requests(seed: int, count: int, pool: int, prefixes: int = 3) -> list[Request]:
    """Requests of all lengths that a pool can hold, arriving faster than they can be served."""
    rng = random.Random(seed)
    made, now = [], 0.0
    for index in range(count):
        now += rng.expovariate(2.0)
        prompt = rng.choice((rng.randint(1, 40), rng.randint(1, pool // 3)))
        output = rng.choice((1, rng.randint(1, 12), rng.randint(1, pool // 3)))
        shared = rng.randint(0, min(prompt, 30))
        hashes = [rng.randrange(prefixes)] * shared if prefixes else []
        made.append(Request(index, now, prompt, output, hashes=hashes))
    return made


def run(
    limits: SglangLimits, requests: list[Request], jump: bool = True
) -> tuple[Sglang, Recorder]:
    """Serve them all in simulated time."""
    recorder = Recorder()
    planner = Sglang(limits, recorder)
    core = Core(planner, recorder, limits.context_len)
    simulate(iter(requests), [(core, recorder)], FixedCost(0.25), Options(jump=jump))
    return planner, recorder


def adder(memory: Memory, running: RunningBatch, ratio: float, **limits: Any) -> PrefillAdder:
    return PrefillAdder(replace(LIMITS, **limits), memory, running, ratio)


def decoding(index: int, prompt: int, output: int, sampled: int = 1) -> Request:
    """A request that decodes."""
    request = Request(index, 0.0, prompt, output)
    request.computed, request.sampled = prompt + sampled - 1, sampled
    request.target = prompt
    request.status = Status.RUNNING
    return request


# Everybody who is let in is served, to the last token


MIXES = {
    "plain": {},
    "radix": {"disable_radix_cache": False},
    "mixed": {"enable_mixed_chunk": True},
    "mixed, radix, pages": {
        "enable_mixed_chunk": True,
        "disable_radix_cache": False,
        "page_size": 4,
        "chunked_prefill_size": 50,
    },
    "whole prompts": {"chunked_prefill_size": -1, "max_prefill_tokens": 100},
    "simulated admission": {"ignore_eos": True},
    "simulated admission, pages": {"ignore_eos": True, "page_size": 16},
    "bold": {"schedule_conservativeness": 0.05, "max_running_requests": 60},
    "bold, mixed": {
        "schedule_conservativeness": 0.02,
        "max_running_requests": 60,
        "enable_mixed_chunk": True,
        "chunked_prefill_size": 16,
    },
    "bold, radix, pages": {
        "schedule_conservativeness": 0.05,
        "page_size": 8,
        "disable_radix_cache": False,
    },
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mix", MIXES)
def test_all_that_are_let_in_finish_and_the_pool_is_whole_again(mix: str, seed: int) -> None:
    limits = replace(LIMITS, **MIXES[mix])
    requests = some_requests(seed, 80, 1000)
    planner, recorder = run(limits, requests)
    refused = {request.index for request, _ in recorder.refused}
    for request in requests:
        assert request.status is (Status.REFUSED if request.index in refused else Status.FINISHED)
        if request.status is Status.FINISHED:
            assert request.sampled == request.output
    assert len(refused) < 8
    memory = planner.memory
    assert memory.available + memory.evictable == 1000 // limits.page_size * limits.page_size
    assert memory.blocks_used == 0
    assert not planner.waiting()
    assert not len(planner.running) or not planner.running.live
    events = recorder.event_rows()
    count = {k: int((events[:, 2] == k).sum()) for k in (FINISH, FIRST, PREEMPT)}
    assert count[FINISH] == len(requests) - len(refused)
    assert count[FIRST] <= count[FINISH] + count[PREEMPT]
    assert recorder.step_columns()["kv_blocks_used"].min() >= 0


def test_retraction_does_happen_in_these_runs() -> None:
    for mix in ("bold", "bold, mixed", "bold, radix, pages"):
        happened = 0
        for seed in range(4):
            _, recorder = run(replace(LIMITS, **MIXES[mix]), some_requests(seed, 80, 1000))
            happened += int(recorder.step_columns()["preempted"].sum())
        assert happened, mix


def test_a_mixed_batch_without_memory_for_its_decodes_retracts() -> None:
    """Where SGLang takes the tokens unchecked and dies."""
    limits = replace(
        LIMITS,
        max_total_tokens=200,
        chunked_prefill_size=8,
        enable_mixed_chunk=True,
        schedule_conservativeness=0.01,
    )
    small = [Request(i, 0.0, 4, 60) for i in range(4)]
    long = Request(4, 1.0, 120, 10)
    planner, recorder = run(limits, [*small, long])
    steps = recorder.step_columns()
    retracted = steps["preempted"] > 0
    assert bool(np.any(retracted & (steps["prefill_tokens"] > 0)))
    assert all(r.status is Status.FINISHED for r in (*small, long))
    assert planner.memory.available == 200


# Steps taken one by one and in jumps are the same


@pytest.mark.parametrize("mix", MIXES)
def test_jumping_equals_stepping_to_the_last_bit(mix: str) -> None:
    limits = replace(LIMITS, **MIXES[mix])
    for seed in range(2):
        ends = []
        for jump in (True, False):
            requests = some_requests(seed, 60, 1000)
            for request in requests:
                request.output *= 2
                request.arrival *= 8
            planner, recorder = run(limits, requests, jump)
            ends.append((recorder, planner))
        (jumped, a), (stepped, b) = ends
        assert jumped.packed < stepped.packed
        columns, others = jumped.step_columns(), stepped.step_columns()
        assert {k: v.tobytes() for k, v in columns.items()} == {
            k: v.tobytes() for k, v in others.items()
        }
        assert jumped.event_rows().tobytes() == stepped.event_rows().tobytes()
        assert a.ratio.current == b.ratio.current


# Refusals


@pytest.mark.parametrize(
    ("prompt", "output", "reason"),
    [
        (993, 1, None),
        (994, 1, "aborts one of 994 or more"),
        (5000, 1, "aborts one of 994 or more"),
        (100, 898, None),
        (100, 899, "at most 898 output tokens"),
    ],
)
def test_what_sglang_would_abort_or_cut_is_refused(
    prompt: int, output: int, reason: str | None
) -> None:
    planner = Sglang(LIMITS, Recorder())
    found = planner.refusal(Request(0, 0.0, prompt, output))
    assert found is None if reason is None else reason in str(found)


def test_the_context_limits_as_the_pool_does() -> None:
    planner = Sglang(replace(LIMITS, context_len=500), Recorder())
    assert planner.refusal(Request(0, 0.0, 400, 98)) is None
    assert "at most 98" in str(planner.refusal(Request(0, 0.0, 400, 99)))
    assert "context 500" in str(planner.refusal(Request(0, 0.0, 494, 1)))


@pytest.mark.parametrize("limits", [
    LIMITS,
    replace(LIMITS, ignore_eos=True),
    replace(LIMITS, ignore_eos=True, page_size=16),
    replace(LIMITS, page_size=16, disable_radix_cache=False),
    replace(LIMITS, chunked_prefill_size=-1),
])  # fmt: skip
def test_the_largest_that_is_let_in_does_run(limits: SglangLimits) -> None:
    for prompt in (1, 16, 17, 400, 993):
        planner = Sglang(limits, Recorder())
        fits = [n for n in range(1, 1000) if planner.refusal(Request(0, 0.0, prompt, n)) is None]
        if fits:
            largest = Request(0, 0.0, prompt, fits[-1])
            run(limits, [largest])
            assert largest.status is Status.FINISHED


def test_a_request_that_outgrows_the_pool_alone_is_aborted_with_a_reason() -> None:
    recorder = Recorder()
    limits = replace(LIMITS, max_total_tokens=100, schedule_conservativeness=0.1)
    planner = Sglang(replace(limits, max_total_tokens=5000), recorder)
    planner.memory.blocks.free = 100  # the rest is lost, which refusal cannot know of
    request = Request(0, 0.0, 50, 4000)
    planner.add(request)
    request.output = 40
    first = planner.plan(0.0)
    request.output = 4000
    assert isinstance(first, Step)
    planner.complete(first)
    while isinstance(step := planner.plan(0.0), Step):
        planner.complete(step)
    assert request.status is Status.REFUSED
    assert recorder.refused[0][0] is request
    assert "aborted" in recorder.refused[0][1]
    assert planner.memory.available == 100


# The sums


def test_the_ratio_falls_from_its_start_to_its_floor() -> None:
    ratio = NewTokenRatio()
    assert (ratio.initial, round(ratio.smallest, 6)) == (0.7, 0.098)
    assert round(ratio.decrement, 7) == 0.0010033
    by_hand = ratio.initial
    for _ in range(700):
        by_hand = max(by_hand - ratio.decrement, ratio.smallest)
        ratio.decay()
        assert ratio.current == by_hand
    jumped = NewTokenRatio()
    jumped.decay(250)
    jumped.decay(10_000)
    assert jumped.current == ratio.smallest
    jumped.after_retraction([(10, 100), (30, 40)])
    assert jumped.current == (10 + 30 + 2 * 20) / (140 + 1)
    jumped.after_retraction([(100, 100)])
    assert jumped.current == 1.0
    jumped.reset()
    assert jumped.current == 0.7
    assert NewTokenRatio(2.0).initial == 1.0


def test_outputs_ahead_are_what_a_sum_over_all_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "CLIP_MAX_NEW_TOKENS", 9)
    rng = random.Random(5)
    running = RunningBatch(4)
    members: list[Request] = []
    for index in range(400):
        deed = rng.random()
        if deed < 0.4:
            request = decoding(index, rng.randint(1, 9), rng.randint(2, 40))
            running.append([request]) if deed < 0.3 else running.prepend([request])
            members.append(request)
        elif deed < 0.9:
            ends = {running.outputs_ahead(r) for r in members}
            for ended in running.advance(min(ends, default=1) if deed < 0.6 else 1):
                members.remove(ended)
            running.drop_ended()
        elif members:
            running.leave(members.pop(rng.randrange(len(members))))
        assert running.total_ahead() == sum(min(running.outputs_ahead(r), 9) for r in members)
        assert running.live == len(members)


def test_a_sum_close_to_an_integer_is_the_engines_own() -> None:
    """Σ(x·ratio) and (Σx)·ratio differ in the last bits, and a whole token hangs on it."""
    differed = 0
    for seed in range(200):
        rng = random.Random(seed)
        running, memory = RunningBatch(1), Memory(1000, 1, None)
        requests = [decoding(i, 5, rng.randint(2, 30)) for i in range(rng.randint(1, 30))]
        running.append(requests)
        ratio = rng.choice((0.7, 0.1, 0.35))
        engines = 0.0
        for r in requests:
            engines += (r.output - r.sampled) * ratio
        theirs = 1000 - (0 + engines)
        ours = adder(memory, running, ratio).rem_total
        assert int(ours) == int(theirs)
        whole = round(theirs)
        assert [ours < whole, ours <= whole, ours > whole] == [
            theirs < whole, theirs <= whole, theirs > whole
        ]  # fmt: skip
        differed += 1000 - sum(r.output - 1 for r in requests) * ratio != theirs
    assert differed > 5


def test_memory_without_limit_is_never_spoken_for() -> None:
    memory = Memory(1 << 62, 16, None)
    room = adder(memory, RunningBatch(16), 0.7, max_total_tokens=1 << 62, page_size=16)
    request = Request(0, 0.0, 100, 10_000)
    assert room.add(request) is Verdict.CONTINUE
    assert room.works[0].tokens == 100


def test_a_request_joins_only_if_it_fits_strictly() -> None:
    for pool, verdict in ((50 + 40 + 1, Verdict.NO_TOKEN), (50 + 40 + 2, Verdict.CONTINUE)):
        room = adder(Memory(pool, 1, None), RunningBatch(1), 0.7)
        assert room.add(Request(0, 0.0, 50, 40)) is verdict
        assert len(room.works) == (verdict is Verdict.CONTINUE)


def test_the_one_that_fills_the_chunk_is_cut_and_ends_the_batch() -> None:
    room = adder(Memory(1000, 1, None), RunningBatch(1), 0.7)
    first, second = Request(0, 0.0, 100, 5), Request(1, 0.0, 100, 5)
    assert room.add(first) is Verdict.CONTINUE
    assert room.add(second) is Verdict.OTHER
    assert [work.tokens for work in room.works] == [100, 28]
    assert room.chunked is second
    assert not room.works[1].samples


def test_who_is_retracted_and_what_is_kept() -> None:
    memory, running, ratio = Memory(300, 1, None), RunningBatch(1), NewTokenRatio()
    requests = [
        decoding(0, 50, 90, sampled=9),
        decoding(1, 60, 90, sampled=4),
        decoding(2, 70, 90, sampled=4),
        decoding(3, 70, 90, sampled=4),
    ]
    running.append(requests)
    memory.blocks.take(sum(r.computed for r in requests))
    free = memory.available
    victims = retract(running, memory, ratio, lambda: memory.available >= free + 100)
    assert [r.index for r in victims] == [3, 2]
    assert memory.available == free + 2 * 73
    assert [r.index for r in running.in_order()] == [0, 1]
    assert ratio.current == (9 + 4 + 2 * 20) / (180 + 1)


def test_the_running_batch_keeps_sglangs_order() -> None:
    running = RunningBatch(1)
    a, b, c, d = (decoding(i, 5, 50) for i in range(4))
    running.append([a, b])
    running.prepend([c, d])
    assert running.in_order() == [c, d, a, b]
    running.reorder([b, a, d, c])
    assert running.in_order() == [b, a, d, c]
    e = decoding(4, 5, 50)
    running.append([e])
    assert running.in_order() == [b, a, d, c, e]


# Defaults


def test_defaults_by_memory() -> None:
    gib = 1 << 30
    sizes = {16: 2048, 24: 4096, 80: 8192, 141: 8192, 180: 16384}
    assert {g: default_chunked_prefill_size(g * gib) for g in sizes} == sizes
    assert default_chunked_prefill_size(None) == 4096
    assert default_max_running_requests(400_000, 131_072) == 2048
    assert default_max_running_requests(400_000, 8_192) == 4096
    assert default_max_running_requests(3_000, 131_072) == 1500
    assert default_max_running_requests(3_000, 131_072, given=5000) == 1500
    assert default_max_running_requests(400_000, 131_072, given=64) == 64


@pytest.mark.parametrize(
    ("gib", "chunk", "tp", "share"),
    [  # as SGLang's own `handle_gpu_memory_settings` has them
        (79.65, 8192, 1, 0.83),
        (79.15, 2048, 1, 0.874),
        (79.15, -1, 1, 0.683),
        (22.17, 4096, 1, 0.679),
        (22.17, 4096, 8, 0.63),
        (15.9, 2048, 1, 0.75),
        (44.53, 4096, 4, 0.827),
        (139.81, 8192, 8, 0.893),
        (178.36, 16384, 1, 0.853),
    ],
)
def test_the_share_of_memory_for_weights_and_kv(
    gib: float, chunk: int, tp: int, share: float
) -> None:
    assert default_mem_fraction_static(gib * (1 << 30), chunk, tensor_parallel=tp) == share
