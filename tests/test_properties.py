"""What must hold for every policy, whatever arrives: nothing lost, nothing over a bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.compose import budget
from serving.core import Core
from serving.step import Step, Wait
from tests.strategies import POINTS, Case, cases, engine, examples, real, requests, same


@pytest.mark.parametrize("name", POINTS)
@given(data=st.data())
@examples(25)
def test_nothing_is_lost_and_nothing_is_over_a_bound(name: str, data: st.DataObject) -> None:
    case: Case = data.draw(cases([name]))
    requests_, steps, events = real(case)
    finished = requests_[requests_.status == "finished"]
    refused = requests_[requests_.status == "refused"]
    assert len(finished) + len(refused) == len(case.trace)
    assert refused.reason.notna().all()
    # tokens emitted = tokens asked for
    emitted = int(steps.decode_tokens.sum()) + int((events.kind == "first").sum())
    assert emitted == int(finished.output_tokens.sum())
    # seats and budget
    assert (steps.running <= case.settings.max_num_seqs).all()
    most = budget(case.point, case.settings)
    if most is not None:
        over = steps[steps.prefill_slots + steps.decode_slots > most]
        if case.point.lifecycle == "drain":  # one over-long prompt goes alone
            over = over[(over.prefill_rows > 1)]
        elif case.cuda_graphs:
            over = over[over.prefill_tokens + over.decode_tokens > most]
        assert over.empty
    # memory
    assert (steps.kv_blocks_used >= 0).all()
    if case.settings.usable_blocks is not None:
        assert (steps.kv_blocks_used <= case.settings.usable_blocks).all()
    # padding
    assert (steps.prefill_slots >= steps.prefill_tokens).all()
    assert (steps.prefill_computed_pairs >= steps.prefill_useful_pairs).all()
    assert (steps.decode_computed_pairs >= steps.decode_useful_pairs).all()
    if case.point.layout != "packed":
        padded = steps[steps.prefill_rows > 0]
        assert (padded.prefill_slots % padded.prefill_rows == 0).all()
    # time goes on
    assert (np.diff(steps.end_s) >= 0).all()
    assert (steps.start_s.to_numpy()[1:] >= steps.end_s.to_numpy()[:-1]).all()


@given(case=cases())
@examples(60)
def test_the_same_inputs_give_the_same_record(case: Case) -> None:
    assert same(real(case), real(case))


@given(case=cases())
@examples(80)
def test_memory_is_free_at_the_end_and_nobody_is_scheduled_twice(case: Case) -> None:
    core, _ = engine(case)
    ahead = list(requests(case))
    now, flight = 0.0, []
    depth = 2 if case.settings.async_scheduling else 1
    for _ in range(100_000):
        while ahead and ahead[0].arrival <= now:
            core.add(ahead.pop(0))
        planned = core.plan(now) if len(flight) < depth else Wait()
        if isinstance(planned, Step):
            members = [r for r, _ in planned.decodes.members()]
            names = [work.request for work in planned.prefill] + members
            assert len(set(names)) == len(names)
            assert len(members) == planned.features.decode_tokens
            flight.append(planned)
        elif flight:
            core.complete(flight.pop(0))
            now += 0.05
        elif ahead or planned.until is not None:
            times = [r.arrival for r in ahead[:1]]
            times += [] if planned.until is None else [planned.until]
            now = max(now, min(times))
        else:
            break
    assert core.unfinished == 0
    assert blocks_of(core).used == 0


def blocks_of(core: Core) -> object:
    return core.planner.blocks


@given(case=cases([n for n in POINTS if n.startswith("bucketing") and n.endswith("drain")]))
@examples(60)
def test_nobody_is_held_back_for_longer_than_max_wait(case: Case) -> None:
    waits = real(case)[0].grouping_wait_s.dropna()
    assert (waits <= case.settings.max_wait + 1e-9).all()


def test_a_lonely_bucket_is_not_starved() -> None:
    """One long prompt among a steady stream of short ones that fill their bucket all the time."""
    import lengthwise
    from traces import Trace

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
