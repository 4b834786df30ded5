"""What must hold for every policy, whatever arrives: nothing lost, nothing over a bound."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lengthwise
from policies.compose import budget, compose
from serving.core import Core
from serving.recorder import Recorder
from serving.request import Request, Status
from serving.step import Padded, Step, Wait
from sim.engine import Options, simulate
from tests.strategies import (
    POINTS,
    Case,
    cases,
    cost_model,
    examples,
    real,
    requests,
    same,
    written,
)
from traces import Trace


class Watched(Core):
    """A core that looks closely at every step that is planned."""

    def __init__(self, case: Case) -> None:
        recorder = Recorder()
        planner = compose(case.point, case.settings, recorder)
        super().__init__(planner, recorder, case.settings.max_model_len)
        self.case = case
        self.blocks: Any = planner.blocks
        self.budget = budget(case.point, case.settings)
        self.computed: dict[Request, int] = {}  # tokens so far, since its last preemption
        self.emitted: Counter[Request] = Counter()

    def plan(self, now: float) -> Step | Wait:
        step = super().plan(now)
        if isinstance(step, Step):
            self.check(step)
        return step

    def check(self, step: Step) -> None:
        f, settings = step.features, self.case.settings
        members = step.decodes.members() if f.decode_tokens else []
        names = [work.request for work in step.prefill] + [r for r, _ in members]
        assert len(set(names)) == len(names), "scheduled twice"
        assert len(members) == f.decode_tokens
        assert step.running <= settings.max_num_seqs
        assert self.blocks.free >= 0
        assert self.blocks.used == step.blocks_used
        self.follow(step, members)
        if isinstance(step.layout, Padded):
            rows, width = len(step.layout.rows), step.layout.width
            assert set(names) <= set(step.layout.rows)
            assert width >= max(r.prompt for r in step.layout.rows)
            assert f.prefill_slots == (rows * width if step.prefill else 0)
            assert f.decode_slots == (0 if step.prefill else rows)
            grown = {width + context + 1 - r.prompt for r, context in members}
            assert {f.decode_longest} == (grown or {0})  # all rows have the padding too
        else:
            assert (f.prefill_slots, f.decode_slots) == (f.prefill_tokens, f.decode_tokens)
            assert f.decode_longest == max((context + 1 for _, context in members), default=0)
        if self.case.point.lifecycle != "drain":
            assert f.prefill_tokens + f.decode_tokens <= (self.budget or 0)
            if settings.order == "fcfs" and self.case.point.grouping == "fcfs":
                for victim in step.preempted:  # never the oldest
                    assert any(r.index < victim.index for r in names), "the oldest is starved"
        elif self.case.point.grouping == "token-budget" and len(step.prefill) > 1:
            assert f.prefill_slots <= (self.budget or 0)

    def follow(self, step: Step, members: Any) -> None:
        """Every token is computed once, in order, between one preemption and the next."""
        for request in step.preempted:
            self.computed.pop(request, None)
        for request, start, tokens, samples in step.prefill:
            known = request.prompt + self.emitted[request]
            assert start == self.computed.get(request, start), "a gap in its tokens"
            assert tokens > 0
            assert start + tokens <= known
            assert samples == (start + tokens == known and request.output > 0)
            self.computed[request] = start + tokens
            self.emitted[request] += samples
        for request, context in members:
            assert context == self.computed[request]
            self.computed[request] = context + 1
            self.emitted[request] += 1

    def at_the_end(self) -> None:
        assert self.unfinished == self.in_flight == 0
        assert self.blocks.used == 0
        for request, count in self.emitted.items():
            assert request.status is Status.FINISHED
            assert count == request.output


@pytest.mark.parametrize("name", POINTS)
@given(data=st.data())
@examples(16)
def test_every_step_is_sound(name: str, data: st.DataObject) -> None:
    case: Case = data.draw(cases([name]))
    core = Watched(case)
    how = Options(2 if case.settings.async_scheduling else 1, False)
    simulate(requests(case), [(core, core.recorder)], cost_model(case.cost), how)
    core.at_the_end()


@pytest.mark.parametrize("name", POINTS)
@given(data=st.data())
@examples(12)
def test_the_record_accounts_for_everything(name: str, data: st.DataObject) -> None:
    case: Case = data.draw(cases([name]))
    table, steps, events = real(case)
    finished = table[table.status == "finished"]
    refused = table[table.status == "refused"]
    assert len(finished) + len(refused) == len(case.trace)
    assert refused.reason.str.len().gt(10).all()
    assert finished.reason.isna().all()
    emitted = int(steps.decode_tokens.sum()) + int((events.kind == "first").sum())
    assert emitted == int(finished.output_tokens.sum())
    kinds = events.groupby("kind", observed=False).size()
    assert kinds["admit"] == len(finished) + kinds["preempt"] - late_finishes(events)
    assert kinds["finish"] == len(finished)
    usable = case.settings.usable_blocks
    assert usable is None or steps.kv_blocks_used.max() <= usable or not len(steps)
    assert (steps.prefill_computed_pairs >= steps.prefill_useful_pairs).all()
    assert (steps.decode_computed_pairs >= steps.decode_useful_pairs).all()
    assert (np.diff(steps.end_s) >= 0).all()
    assert (steps.start_s.to_numpy()[1:] >= steps.end_s.to_numpy()[:-1]).all()
    assert (finished.scheduled_s >= finished.arrival_s).all()


def late_finishes(events: Any) -> int:
    """Requests that were preempted while their last token was on its way: never admitted again."""
    last = events[events.kind == "finish"].set_index("request").step
    preempts = events[events.kind == "preempt"]
    return int((preempts.step.to_numpy() > last.loc[preempts.request].to_numpy()).sum())


@given(case=cases())
@examples(30)
def test_the_same_inputs_give_the_same_record(case: Case) -> None:
    assert same(written(case), written(case))


@given(case=cases([name for name in POINTS if name.startswith("bucketing")]))
@examples(150)
def test_nobody_is_held_back_for_longer_than_max_wait(case: Case) -> None:
    waits = written(case).waits.values()
    assert max(waits, default=0.0) <= case.settings.max_wait + 1e-9


def test_nor_is_one_who_waits_beside_a_preempted_request() -> None:
    trace = Trace(np.array([0.0, 4.0, 4.0, 4.0]), np.array([15, 5, 5, 5]), np.array([2, 8, 8, 8]))
    record = lengthwise.replay(
        trace,
        "bucketing",
        lifecycle="chunked-prefill",
        cost="fixed",
        step_ms=50.0,
        max_num_seqs=3,
        bucket_bounds=(8,),
        max_wait_ms=5000.0,
        block_size=4,
        num_gpu_blocks_override=7,
    )
    assert record.summary["preemptions"] > 0
    assert record.requests.grouping_wait_s.max() <= 5.0


def test_a_lonely_bucket_is_not_starved() -> None:
    """One long prompt among a steady stream of short ones that fill their bucket all the time."""
    count = 400
    arrivals = np.sort(np.r_[np.arange(count) * 0.02, 0.5])
    prompts = np.where(arrivals == 0.5, 5000, 100)
    record = lengthwise.replay(
        Trace(arrivals, prompts, np.full(count + 1, 4)),
        "bucketing",
        cost="fixed",
        step_ms=10.0,
        max_num_seqs=4,
        max_wait_ms=100.0,
    )
    lonely = record.requests[record.requests.prompt_tokens == 5000].iloc[0]
    assert lonely.grouping_wait_s <= 0.1 + 1e-9
    assert lonely.queue_s <= 0.1 + 0.04 + 1e-9  # and at most one batch of four steps
