"""Every rule of SGLang's scheduler that this project follows is held by some recording of it."""

from __future__ import annotations

import pytest

from policies import conform
from policies.sglang import Memory, NewTokenRatio, PrefillAdder, RunningBatch, Sglang, planner
from policies.sglang.batch import OutputsAhead
from policies.sglang.simulation import DecodesAhead
from serving.radix import RadixCache
from tests.policies.mutants import Mutant, install
from tests.policies.recordings import names, recording

MUTANTS = (
    # merging (2)
    Mutant(
        "a chunked or ended request left behind opens admission",
        Sglang,
        "_merge",
        "len(join) < len(requests) or not len(self.running)",
        "not len(self.running)",
    ),
    Mutant(
        "a batch that becomes the running one opens admission",
        Sglang,
        "_merge",
        "len(join) < len(requests) or not len(self.running)",
        "len(join) < len(requests)",
    ),
    Mutant(
        "after a mixed batch the prompts come first",
        Sglang,
        "_merge",
        "self.running.prepend(join)",
        "self.running.append(join)",
    ),
    Mutant(
        "after a mixed batch admission is open",
        Sglang,
        "_merge",
        "self.running.prepend(join)\n        self._full = False",
        "self.running.prepend(join)",
    ),
    # when a prefill may start (3, 4)
    Mutant(
        "prefills come before decodes",
        Sglang,
        "turn",
        "self._prefill()",
        "[] if self.running.live else self._prefill()",
    ),
    Mutant(
        "no prefill while the batch is full",
        Sglang,
        "_prefill",
        "queue, chunked = self.queue",
        "self._full = False; queue, chunked = self.queue",
    ),
    Mutant(
        "who ended with the last decodes still holds a seat",
        Sglang,
        "_seats",
        "max(len(self.running), under_way)",
        "under_way",
    ),
    Mutant("the chunked request holds a seat", Sglang, "_seats", "(self.chunked is not None)", "0"),
    Mutant(
        "the chunked request counts in the batch",
        Sglang,
        "_prefill",
        "len(adder.works) >= seats",
        "len(adder.works) - (chunked is not None) >= seats",
    ),
    # budgets (5)
    Mutant(
        "mixed decodes count against max_prefill_tokens",
        PrefillAdder,
        "__init__",
        "limits.max_prefill_tokens - self._mix",
        "limits.max_prefill_tokens",
    ),
    Mutant(
        "mixed decodes count against the chunk",
        PrefillAdder,
        "__init__",
        "limits.chunked_prefill_size - self._mix",
        "limits.chunked_prefill_size",
    ),
    Mutant(
        "mixed decodes count against memory",
        PrefillAdder,
        "rem_total",
        "space - self._mix - self._reserved",
        "space - self._reserved",
    ),
    Mutant(
        "running requests reserve a share of their outputs",
        PrefillAdder,
        "__init__",
        "self._ratio = ratio",
        "self._ratio = ratio = 1.0",
    ),
    Mutant(
        "reserved outputs are clipped",
        OutputsAhead,
        "join",
        "request.end_tick + 1 - CLIP_MAX_NEW_TOKENS",
        "0",
    ),
    Mutant(
        "a charge is a page more",
        PrefillAdder,
        "_take",
        "paged + self._memory.page_size + outputs",
        "paged + outputs",
    ),
    Mutant(
        "a charge has the outputs",
        PrefillAdder,
        "_take",
        "paged + self._memory.page_size + outputs",
        "paged + self._memory.page_size",
    ),
    Mutant(
        "a charge has all outputs, made ones too",
        PrefillAdder,
        "_take",
        "min(request.output, CLIP",
        "min(request.output - request.sampled, CLIP",
    ),
    Mutant(
        "charges against the chunk are in pages",
        PrefillAdder,
        "_take",
        "self.rem_chunk -= paged",
        "self.rem_chunk -= tokens",
    ),
    Mutant(
        "memory spoken for ends the pass",
        PrefillAdder,
        "_state",
        "self.rem_total <= 0 or self.rem_current <= 0",
        "self.rem_current <= 0",
    ),
    Mutant(
        "max_prefill_tokens used up ends the pass",
        PrefillAdder,
        "_state",
        "self.rem_input <= 0 or self.rem_chunk <= 0",
        "self.rem_chunk <= 0",
    ),
    Mutant(
        "memory spoken for makes the batch full",
        Sglang,
        "_prefill",
        "if verdict is Verdict.NO_TOKEN:",
        "if False:",
    ),
    Mutant(
        "the first request refused ends the pass",
        Sglang,
        "_prefill",
        "if verdict is not Verdict.CONTINUE:",
        "if len(adder.works) == before:\n            queue.push(queue.pop())\n"
        "        if verdict is not Verdict.CONTINUE:",
    ),
    # joining (5)
    Mutant(
        "a request must fit strictly",
        PrefillAdder,
        "_fits",
        ">= self.rem_total",
        "> self.rem_total",
    ),
    Mutant(
        "a request must fit with a page more", PrefillAdder, "_fits", "+ memory.page_size >=", ">="
    ),
    Mutant(
        "a request must fit with its outputs to come",
        PrefillAdder,
        "_fits",
        "extend + ahead +",
        "extend +",
    ),
    Mutant(
        "a request must fit with clipped outputs",
        PrefillAdder,
        "_fits",
        "min(max(request.output - request.sampled, 0), CLIP_MAX_NEW_TOKENS)",
        "max(request.output - request.sampled, 0)",
    ),
    Mutant(
        "outputs made already are not to come",
        PrefillAdder,
        "_fits",
        "request.output - request.sampled",
        "request.output",
    ),
    Mutant(
        "a matched head is locked meanwhile",
        PrefillAdder,
        "_fits",
        ">= self.rem_total",
        ">= self.rem_total + prefix",
    ),
    Mutant(
        "without chunking whole prompts within max_prefill_tokens",
        PrefillAdder,
        "_fits",
        "if not self._limits.chunking and",
        "if False and",
    ),
    Mutant(
        "without chunking the first prompt may exceed it",
        PrefillAdder,
        "_fits",
        "and self.works and",
        "and",
    ),
    Mutant(
        "with chunking max_prefill_tokens refuses nobody",
        PrefillAdder,
        "_fits",
        "not self._limits.chunking and self.works",
        "self.works",
    ),
    Mutant(
        "a chunk ends at a page",
        PrefillAdder,
        "_fits",
        "memory.floor(prefix + memory.floor(self.rem_chunk)) - prefix",
        "self.rem_chunk",
    ),
    Mutant(
        "a chunk is at most what memory leaves",
        PrefillAdder,
        "add_chunked",
        "min(self.rem_chunk, memory_bound)",
        "self.rem_chunk",
    ),
    Mutant(
        "the planned admission asks for a page more",
        PrefillAdder,
        "_join_planned",
        "memory.ceil(full) + memory.page_size",
        "memory.ceil(full)",
    ),
    Mutant(
        "the planned admission takes an exact chunk",
        PrefillAdder,
        "_join_planned",
        "min(full, self.rem_chunk)",
        "min(full, self.rem_chunk // 16 * 16)",
    ),
    Mutant(
        "the planned admission holds with ignore_eos and no radix cache",
        Sglang,
        "__init__",
        "self.limits = limits",
        "from dataclasses import replace; self.limits = limits = replace(limits, ignore_eos=False)",
    ),
    Mutant(
        "the simulated decodes keep a token back each",
        DecodesAhead,
        "last",
        "(left + 1) * rows",
        "left * rows",
    ),
    Mutant(
        "the simulated decodes give back what they hold",
        DecodesAhead,
        "last",
        "free + given_back",
        "free",
    ),
    Mutant(
        "the simulation never inserts behind the last",
        PrefillAdder,
        "_survives",
        "ahead.join(left, held, as_sglang)",
        "ahead.join(left, held, before)",
    ),
    # decode (6, 7)
    Mutant(
        "ended decodes open admission", Sglang, "_decode", "if ended or retracted:", "if retracted:"
    ),
    Mutant("retraction opens admission", Sglang, "_decode", "if ended or retracted:", "if ended:"),
    Mutant("the ratio falls with each decode", Sglang, "_decode", "self.ratio.decay()", "pass"),
    Mutant(
        "decodes need a page where they open one",
        Memory,
        "finds_decode",
        "return opening <= self.blocks.free",
        "return opening < self.blocks.free",
    ),
    Mutant(
        "mixed batches leave the ratio",
        Sglang,
        "_mix",
        "if mixed:\n        memory.take",
        "if mixed:\n        self.ratio.decay()\n        memory.take",
    ),
    # retraction (8)
    Mutant(
        "the fewest outputs are retracted first",
        planner,
        "retract",
        "(running.outputs(r), -r.prompt)",
        "(-running.outputs(r), -r.prompt)",
    ),
    Mutant(
        "among equals the longest prompt is retracted first",
        planner,
        "retract",
        "(running.outputs(r), -r.prompt)",
        "(running.outputs(r), r.prompt)",
    ),
    Mutant(
        "no more are retracted than needed",
        planner,
        "retract",
        "(victims and enough())",
        "(len(victims) > 1 and enough())",
    ),
    Mutant(
        "retraction evicts for twenty steps ahead",
        planner,
        "retract",
        "memory.find(RETRACT_STEPS * len(order))",
        "pass",
    ),
    Mutant("the batch is left in keep-order", planner, "retract", "running.reorder(order)", "pass"),
    Mutant(
        "the ratio starts anew from those kept",
        planner,
        "retract",
        "(running.outputs(r), r.output) for r in order",
        "(r.output, r.output) for r in order",
    ),
    Mutant(
        "the new ratio looks twenty steps ahead",
        NewTokenRatio,
        "after_retraction",
        "outputs + RETRACT_STEPS * count",
        "outputs",
    ),
    Mutant(
        "the new ratio divides by one more",
        NewTokenRatio,
        "after_retraction",
        "(asked + 1)",
        "asked",
    ),
    Mutant(
        "the retracted go to the end of the queue",
        Sglang,
        "_retract",
        "self.queue.push(request)",
        "self.queue.push_front(request)",
    ),
    Mutant(
        "the retracted keep their outputs",
        Sglang,
        "_take_out",
        "request.computed = 0",
        "request.computed = request.sampled = 0",
    ),
    # the ratio (9)
    Mutant(
        "conservativeness scales the ratio",
        NewTokenRatio,
        "__init__",
        "INITIAL * schedule_conservativeness",
        "INITIAL",
    ),
    Mutant(
        "the smallest ratio is a share of the first",
        NewTokenRatio,
        "__init__",
        "self.initial * SMALLEST_SHARE",
        "SMALLEST_SHARE",
    ),
    Mutant(
        "the ratio stops at the smallest",
        NewTokenRatio,
        "decay",
        "max(self.current - self.decrement, self.smallest)",
        "self.current - self.decrement",
    ),
    Mutant("an idle engine resets the ratio", Sglang, "turn", "self.ratio.reset()", "pass"),
    # radix cache (11)
    Mutant(
        "a match leaves a token to compute",
        Memory,
        "hold_prefix",
        "request.known - 1",
        "request.known",
    ),
    Mutant("a middle chunk is cached", Sglang, "_merge", "self.memory.keep(self.chunked)", "pass"),
    Mutant(
        "a prompt is cached at its end", Sglang, "complete", "self.memory.keep(request)", "pass"
    ),
    Mutant(
        "outputs are cached at the finish",
        Memory,
        "finish",
        "self._insert(self.radix, request)",
        "pass",
    ),
    Mutant(
        "duplicate slots are given back",
        Memory,
        "_insert",
        "self.blocks.free += (known - held.end) // self.page_size",
        "pass",
    ),
    Mutant(
        "a finished prompt ends in a node of its own",
        Memory,
        "finish",
        "0 < prompt < self.floor(request.computed) and held.end != prompt",
        "False",
    ),
    Mutant(
        "eviction is for the shortfall",
        Memory,
        "find",
        "self.radix.evict(short)",
        "self.radix.evict(tokens)",
    ),
    Mutant(
        "a paged prefill evicts for a page each more",
        Memory,
        "finds_prefill",
        "self.page_size * len(works)",
        "2 * self.page_size * len(works)",
    ),
    Mutant(
        "a paged decode evicts as if each opened a page",
        Memory,
        "take_decode",
        "self.find(live * self.page_size)",
        "pass",
    ),
    Mutant(
        "an insert touches the path that was held", RadixCache, "insert", "self._use(held)", "pass"
    ),
    Mutant("a match touches its path", RadixCache, "match", "self._touch(used)", "pass"),
    Mutant("an insert touches its path", RadixCache, "insert", "self._touch(child)", "pass"),
    Mutant("a split touches the lower half", RadixCache, "_split", "self._touch(node)", "pass"),
    Mutant(
        "the least recently used leaf is evicted",
        RadixCache,
        "_touch",
        "self._clock += 1",
        "self._clock -= 1",
    ),
    Mutant(
        "whole leaves are evicted",
        RadixCache,
        "evict",
        "gone += node.end - node.start",
        "gone += min(node.end - node.start, count - gone)",
    ),
    Mutant(
        "a parent can be evicted once it is a leaf",
        RadixCache,
        "_remove",
        "self._enqueue(parent)",
        "pass",
    ),
    Mutant(
        "the batch's order is kept",
        RunningBatch,
        "in_order",
        "sorted(self._live, key=_place)",
        "sorted(self._live, key=lambda r: -r.seq)",
    ),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.rule)
def test_a_broken_rule_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    install(mutant, monkeypatch)
    caught = (conform.compare(recording("sglang", name)) for name in names("sglang"))
    assert any(caught), f"no recording notices when this is broken: {mutant.rule}"
