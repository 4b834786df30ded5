"""Every rule of vLLM's scheduler that this project follows is held by some recording of it."""

from __future__ import annotations

import pytest

from policies import conform
from policies.admission import Admission
from policies.conform import vllm
from policies.continuous import Continuous
from policies.grouping import Fcfs
from policies.in_order import InOrder
from serving import queue
from serving.group import DecodeGroup
from serving.prefix import PrefixBlocks
from tests.policies.mutants import Mutant, install
from tests.policies.recordings import names, recording

MUTANTS = (
    # order and budget
    Mutant(
        "prefix hits are free of budget",
        Admission,
        "take",
        "self.serve(request, tokens)",
        "self.serve(request, tokens); self.budget -= hit",
    ),
    Mutant(
        "the cap holds for running prefills",
        Continuous,
        "_serve_all",
        "min(request.target - request.computed, room.cap)",
        "request.target - request.computed",
    ),
    Mutant(
        "the cap holds for waiting requests",
        Admission,
        "fits",
        "tokens > self.cap",
        "False",
    ),
    Mutant("the cap is lifted for a lone request", Admission, "open", "!= 1", ">= 1"),
    Mutant(
        "alone is counted at the start, waiting ones included",
        Admission,
        "open",
        " + planner.waiting()",
        "",
    ),
    # blocks
    Mutant(
        "no block is reserved ahead for the token sampled now",
        DecodeGroup,
        "opening",
        "self._opening[self.tick % self._size]",
        "self._opening[(self.tick + 1) % self._size]",
    ),
    Mutant(
        "one block is the null block",
        vllm,
        "build",
        "config.num_gpu_blocks - 1",
        "config.num_gpu_blocks",
    ),
    # preemption
    Mutant(
        "the victim is the newest running request",
        InOrder,
        "_victim",
        "self._order[-1]",
        "self._order[0]",
    ),
    Mutant(
        "the victim may be the requester itself",
        InOrder,
        "_victim",
        "self._order[-1]",
        "self._order[-1 if self._at < len(self._order) - 1 else -2]",
    ),
    Mutant("under priority the victim is the least urgent", InOrder, "_victim", "max(", "min("),
    Mutant(
        "among equals in priority the victim is the latest",
        InOrder,
        "_victim",
        "(r.priority, r.arrival)",
        "(r.priority, -r.arrival)",
    ),
    Mutant(
        "a victim's tokens return to the budget",
        InOrder,
        "_take_out",
        "self._room.budget += served",
        "pass",
    ),
    Mutant(
        "the cursor moves back when a victim sat before it",
        InOrder,
        "_take_out",
        "self._at -= 1",
        "pass",
    ),
    Mutant("a preempted request goes to the front", Continuous, "preempt", "push_front", "push"),
    Mutant(
        "a preempted request keeps its outputs",
        Continuous,
        "preempt",
        "request.computed = 0",
        "request.computed = request.sampled = 0",
    ),
    Mutant(
        "nothing is admitted after a preemption",
        Continuous,
        "plan",
        " and not self._preempted:",
        ":",
    ),
    # admission
    Mutant(
        "requests in prefill hold a seat",
        Admission,
        "fits",
        "len(planner.running) >= limits",
        "planner.group.live >= limits",
    ),
    Mutant(
        "the head of the queue blocks all behind it",
        Fcfs,
        "form",
        "while (request := queue.peek()) is not None and room.fits(request):\n"
        "        queue.pop()\n",
        "for request in [r for r in queue] if hasattr(queue, '__iter__') else []:\n"
        "        if not room.fits(request): continue\n"
        "        queue.remove(request)\n",
    ),
    Mutant(
        "without chunking a prompt over the budget waits",
        Admission,
        "fits",
        "if not limits.chunked_prefill:",
        "if False:",
    ),
    Mutant(
        "a resumed request computes its outputs anew",
        Admission,
        "fits",
        "known = request.prompt + request.sampled",
        "known = request.prompt",
    ),
    Mutant(
        "the gate asks room for all known tokens",
        Admission,
        "fits",
        "known if limits.reserve_full_isl else hit + tokens",
        "hit + tokens",
    ),
    Mutant(
        "the gate is off where it is switched off",
        Admission,
        "fits",
        "known if limits.reserve_full_isl else hit + tokens",
        "known",
    ),
    Mutant(
        "hit blocks that somebody holds need no room",
        Admission,
        "fits",
        " - hits + idle > free",
        " > free",
    ),
    Mutant(
        "hit blocks that nobody holds need room, once",
        Admission,
        "fits",
        "+ idle > free",
        "+ 2 * idle > free",
    ),
    Mutant(
        "the watermark is left free",
        Admission,
        "fits",
        "(planner.watermark if planner.running else 0)",
        "0",
    ),
    Mutant(
        "the watermark holds only while something runs",
        Admission,
        "fits",
        "(planner.watermark if planner.running else 0)",
        "planner.watermark",
    ),
    Mutant(
        "an admitted request goes to the end of running",
        Continuous,
        "admitted",
        "self.running[request] = None",
        "self.running = {request: None, **self.running}",
    ),
    # prefix cache
    Mutant(
        "a hit leaves a token to compute",
        PrefixBlocks,
        "hit",
        "(request.prompt + request.sampled - 1) //",
        "(request.prompt + request.sampled) //",
    ),
    Mutant(
        "a preempted request can hit its own outputs",
        PrefixBlocks,
        "hit",
        "self._keys(request, 0, most)",
        "self._keys(request, 0, min(most, len(request.hashes)))",
    ),
    Mutant(
        "full blocks can be hit as soon as they are scheduled",
        Admission,
        "serve",
        "blocks.filled(request, upto)",
        "blocks.filled(request, start)",
    ),
    Mutant(
        "the lookup returns the oldest duplicate",
        PrefixBlocks,
        "_cover",
        "for run in copies:",
        "for run in reversed(copies):",
    ),
    Mutant(
        "duplicates are kept",
        PrefixBlocks,
        "_drop",
        "copies = self._cached[run.key]",
        "copies = self._cached.setdefault(run.key, [run]); copies[:] = [run]",
    ),
    Mutant(
        "blocks are freed tail first",
        PrefixBlocks,
        "release",
        "zip(reversed(request.cached), reversed(request.cached_ends), strict=True)",
        "zip(request.cached, request.cached_ends, strict=True)",
    ),
    Mutant(
        "the least recently used block is evicted",
        PrefixBlocks,
        "take",
        "self._idle.first()",
        "self._idle._ring.older",
    ),
    Mutant(
        "a hit takes a block out of the eviction order",
        PrefixBlocks,
        "enter",
        "self.free -= len(run)",
        "self.free -= 0",
    ),
    # asynchronous scheduling
    Mutant("a stale output is delivered", Continuous, "complete", "request.sampled += 1", "pass"),
    Mutant(
        "a passed-over request keeps its seat until its outcome",
        Admission,
        "fits",
        "len(planner.running) >= limits",
        "sum(1 for r in planner.running if r in planner.group or r in planner.prefilling)"
        " >= limits",
    ),
    Mutant(
        "an empty step takes its place",
        Continuous,
        "plan",
        "self.limits.asynchronous and (self.running or self._to_report)",
        "False",
    ),
    Mutant(
        "finishing forces one more call",
        Continuous,
        "plan",
        "(self.running or self._to_report)",
        "self.running",
    ),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.rule)
def test_a_broken_rule_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    install(mutant, monkeypatch)
    caught = (conform.compare(recording("vllm", name)) for name in names("vllm"))
    assert any(caught), f"no recording notices when this is broken: {mutant.rule}"


def test_a_broken_priority_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    by_arrival = lambda: queue.Ranked(lambda r: 0)  # noqa: E731
    monkeypatch.setitem(queue.ORDERS, "priority", by_arrival)
    assert conform.compare(recording("vllm", "08_priority_preempt"))
