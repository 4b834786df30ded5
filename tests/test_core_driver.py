"""The clock-free core under another driver: no SimPy, two steps in flight, runs cut by hand."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core import Core
from serving.recorder import Recorder
from serving.request import Request, Status
from serving.step import Features, Step, Wait
from sim.graphs import pad_decode
from tests.strategies import (
    POINTS,
    Case,
    cases,
    cost_model,
    engine,
    examples,
    naive,
    requests,
    same,
    written,
)

Decodes = list[tuple[int, int]]
Chunks = list[tuple[int, int, int, bool]]


class Hand:
    """Keeps up to `depth` steps in flight, and lets a run go on only while nobody has arrived."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.core, self.recorder = engine(case)
        self.cost = cost_model(case.cost)
        self.depth = 2 if case.settings.async_scheduling else 1
        self.ahead: deque[Request] = deque(requests(case))
        self.flight: deque[tuple[Step, list[float]]] = deque()  # with the ends of its run
        self.seen: dict[int, tuple[Chunks, Decodes]] = {}  # who was in which step
        self.now = self.last = 0.0
        self.runs = 0

    def drive(self) -> Recorder:
        while True:
            wait = self.plan()
            if self.flight:
                self.collect()
                continue
            times = [r.arrival for r in list(self.ahead)[:1]]
            times += [] if wait is None or wait.until is None else [wait.until]
            if not times:
                return self.recorder
            self.now = max(self.now, min(times))

    def plan(self) -> Wait | None:
        while len(self.flight) < self.depth:
            if self.flight and len(self.flight[-1][1]) > 1:
                return None  # the run goes on
            while self.ahead and self.ahead[0].arrival <= self.now:
                self.core.add(self.ahead.popleft())
            planned = self.core.plan(self.now)
            if isinstance(planned, Wait):
                return planned
            self.launch(planned)
        return None

    def launch(self, step: Step) -> None:
        members = step.decodes.members() if step.features.decode_tokens else ()
        chunks = [(w.request.index, w.start, w.tokens, w.samples) for w in step.prefill]
        self.seen[step.id] = chunks, sorted((r.index, context) for r, context in members)
        if self.case.cuda_graphs:
            step = step._replace(features=pad_decode(step.features))
        start = max(self.now, self.last)
        most = 1 if step.prefill else self.core.run_length(40)
        f, ends = step.features, [start + self.cost.seconds(step.features)]
        while len(ends) < most and not self.stirred([start, *ends][-self.depth]):
            f = longer(f)
            ends.append(ends[-1] + self.cost.seconds(f))
        last, used = self.core.advance(step, len(ends))
        if len(ends) > 1:
            self.recorder.run(step, start, ends, used)
            self.runs += 1
        else:
            self.recorder.step(step, start, ends[0])
        self.last = ends[-1]
        self.flight.append((last, ends))

    def stirred(self, when: float) -> bool:
        """Whether the step that is planned at `when` may be another than the one before it."""
        wake = self.core.planner.wake
        arrived = bool(self.ahead) and self.ahead[0].arrival <= when
        return arrived or (wake is not None and wake <= when)

    def collect(self) -> None:
        step, ends = self.flight.popleft()
        if self.depth == 2 and len(ends) > 1:  # all but its last step have ended
            self.flight.appendleft((step, ends[-1:]))
            self.now = ends[-2]
        else:
            self.core.complete(step)
            self.now = ends[-1]


def longer(f: Features) -> Features:
    """The decode step after `f`: every live row has one token of context more."""
    return f._replace(
        decode_useful_pairs=f.decode_useful_pairs + f.decode_tokens,
        decode_computed_pairs=f.decode_computed_pairs + f.decode_rows,
        decode_longest=f.decode_longest + 1,
    )


@pytest.mark.parametrize("name", POINTS)
@given(data=st.data())
@examples(12)
def test_a_driver_by_hand_makes_the_same_record(name: str, data: st.DataObject) -> None:
    case: Case = data.draw(cases([name]))
    hand = Hand(case)
    assert same(hand.drive(), written(case))
    wanted = {
        step.id: (
            [(r.index, start, tokens, samples) for r, start, tokens, samples in step.chunks],
            sorted((r.index, context) for r, context in step.decodes),
        )
        for step in naive(case).steps
    }
    assert {number: wanted[number] for number in hand.seen} == hand.seen


def test_the_driver_does_take_runs_and_has_two_steps_in_flight() -> None:
    """Or the property above would say little."""
    runs = []
    for depth in (1, 2):

        @given(case=cases(depth=depth))
        @examples(10)
        def count(case: Case) -> None:
            hand = Hand(case)
            hand.drive()
            runs.append((hand.depth, hand.runs))

        count()
    assert all(sum(taken for d, taken in runs if d == depth) > 5 for depth in (1, 2))


# The core's own part


class Idle:
    """A planner that never runs anything."""

    wake: float | None = None

    def __init__(self) -> None:
        self.queue: list[Request] = []

    def refusal(self, request: Request) -> str | None:
        return "odd" if request.prompt % 2 else None

    def add(self, request: Request) -> None:
        self.queue.append(request)

    def plan(self, now: float) -> Wait:
        return Wait()

    def waiting(self) -> int:
        return len(self.queue)


def test_refusals_are_said_and_listed() -> None:
    recorder = Recorder()
    core = Core(Idle(), recorder, max_model_len=10)
    assert core.add(Request(0, 0.0, 8, 2)) is None
    assert core.add(Request(1, 0.0, 8, 3)) == "prompt + output is 11 tokens, over max_model_len 10"
    assert core.add(Request(2, 0.0, 7, 1)) == "odd"
    assert [(r.index, r.status) for r, _ in recorder.refused] == [
        (1, Status.REFUSED),
        (2, Status.REFUSED),
    ]
    assert core.unfinished == 1
    assert core.planner.waiting() == 1


def test_refusal_can_be_switched_off() -> None:
    core = Core(Idle(), Recorder(), max_model_len=10, refuse=False)
    assert core.add(Request(0, 0.0, 7, 90)) is None
    assert core.unfinished == 1
