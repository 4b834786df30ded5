"""Time, predicted: the loop under SimPy, each replica a process, arrivals as events.

SimPy orders events and wakes processes; the times that are recorded and compared are the engine's
own floats, accumulated step by step (`env.now` may differ from them in the last bit).
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Any, Final

import simpy

from serving.core import Core
from serving.recorder import Recorder
from serving.request import Request
from serving.step import Step, Wait
from sim.cost import CostModel
from sim.graphs import pad_decode

Process = Generator[simpy.Event, Any, None]
Router = Callable[[Request, Sequence["Replica"]], "Replica"]

SHORTEST_RUN: Final = 3
"""Steps from which a run beats as many single steps."""

LONGEST_RUN: Final = 4096
"""Steps of a run that are worth computing ahead."""


class PolicyError(ValueError):
    """A policy that can never end: it leaves requests waiting, or asks to be woken in the past."""


@dataclass(frozen=True)
class Options:
    """How a replica is driven; none of it changes what a policy decides."""

    depth: int = 1  # steps in flight; 2: the next is planned while one runs
    jump: bool = True  # take runs of equal decode steps at once
    cuda_graphs: bool = False  # decode rows round up to captured batch sizes


class Feed:
    """The trace's requests, handed out in order of arrival as time reaches them.

    A replica that plans takes them from here by itself; an event is spent on an arrival only while
    a replica watches for one, asleep or in the middle of a run.
    """

    def __init__(
        self,
        env: simpy.Environment,
        requests: Iterator[Request],
        deliver: Callable[[Request], None],
    ) -> None:
        self._env = env
        self._requests = requests
        self._deliver = deliver
        self._watchers = 0
        self._alarm = float("nan")  # the arrival that an event is set for
        self._ahead = next(requests, None)
        self.next = float("inf")  # arrival of the first request not handed out, s
        if self._ahead is not None:
            self.next = self._ahead.arrival

    def deliver(self, until: float) -> None:
        """Hand out every request that has arrived by `until`."""
        while self.next <= until and self._ahead is not None:
            request = self._ahead
            ahead = self._ahead = next(self._requests, None)
            self.next = float("inf") if ahead is None else ahead.arrival
            self._deliver(request)

    def watch(self) -> None:
        """A replica wants to know of arrivals as they happen."""
        self._watchers += 1
        self._set_alarm()

    def unwatch(self) -> None:
        """It does so no longer."""
        self._watchers -= 1

    def _set_alarm(self) -> None:
        arrival = self.next
        if arrival != self._alarm and self._ahead is not None:
            self._alarm = arrival
            timer = self._env.timeout(max(0.0, arrival - self._env.now))
            timer.callbacks.append(lambda _: self._ring(arrival))

    def _ring(self, arrival: float) -> None:
        self.deliver(arrival)
        if self._watchers:
            self._set_alarm()


class Flight:
    """A step that runs, or a run of equal ones."""

    __slots__ = ("end", "ends", "start", "step")

    def __init__(self, step: Step, start: float, end: float, ends: Sequence[float] = ()) -> None:
        self.step = step
        self.start = start  # s
        self.end = end  # of the step, or of the last of the run, s
        self.ends = ends  # of each step of a run, s


class Replica:
    """One engine: plans, lets time pass, takes in what has arrived."""

    def __init__(
        self,
        env: simpy.Environment,
        feed: Feed,
        core: Core,
        recorder: Recorder,
        cost: CostModel,
        how: Options,
        alone: bool,
    ) -> None:
        self.env = env
        self.feed = feed
        self.core = core
        self.cost = cost
        self.recorder = recorder
        self.how = how
        self.alone = alone  # no other replica: the next arrival is its own
        self.inbox: deque[Request] = deque()  # routed here, not in the core yet
        self.outstanding = 0  # routed here and not finished, as of the last ended step
        self._flight: deque[Flight] = deque()
        self._last_end = 0.0
        self._most = LONGEST_RUN if alone else 16  # how long a run is worth computing ahead
        self._watching = False
        self.process = env.process(self._run())

    def arrive(self, request: Request) -> None:
        """A request is routed here; wakes the replica if it sleeps or can cut a run short."""
        self.inbox.append(request)
        self.outstanding += 1
        if self._watching:
            self._unwatch()
            self.process.interrupt()

    def _watch(self) -> None:
        self._watching = True
        self.feed.watch()

    def _unwatch(self) -> None:
        if self._watching:
            self._watching = False
            self.feed.unwatch()

    def _run(self) -> Process:
        env, core, feed, inbox = self.env, self.core, self.feed, self.inbox
        flight, depth, alone = self._flight, self.how.depth, self.alone
        peek = env.peek
        now = 0.0
        until: float | None = None
        while True:
            while len(flight) < depth and not (flight and flight[-1].ends):
                if inbox or feed.next <= now:
                    self._take_in(now)
                planned = core.plan(now)
                if isinstance(planned, Wait):
                    until = planned.until
                    break
                flight.append(self._launch(planned, now))
            if not flight:
                now = yield from self._sleep(until, now)
            elif flight[0].ends:
                now = yield from self._collect_run(flight[0], flight[0].ends)
            else:
                ended = flight[0]
                now = ended.end
                if peek() <= now:  # somebody else acts before it ends
                    yield env.timeout(max(0.0, now - env.now))
                if not alone and feed.next <= now:  # routed as of before this step's end
                    feed.deliver(now)
                flight.popleft()
                finished = core.complete(ended.step)
                if finished:
                    self.outstanding -= len(finished)

    def _take_in(self, now: float) -> None:
        """What has arrived by now goes into the core."""
        feed, inbox, add = self.feed, self.inbox, self.core.add
        if feed.next <= now:
            feed.deliver(now)
        while inbox and inbox[0].arrival <= now:
            if add(inbox.popleft()) is not None:
                self.outstanding -= 1

    def _launch(self, step: Step, now: float) -> Flight:
        """Start a step, or the longest run of steps like it, behind what is running."""
        how, cost = self.how, self.cost
        if how.cuda_graphs:
            step = step._replace(features=pad_decode(step.features))
        start = now if now > self._last_end else self._last_end
        if how.jump and not step.prefill:
            if self._most < SHORTEST_RUN:
                self._most += 1  # the last run was cut at once: step for a while
            else:
                most = self._most
                if self.alone and self.feed.next < inf:
                    most = min(most, self._steps_until(self.feed.next, start, step))
                count = self.core.run_length(most) if most >= SHORTEST_RUN else 1
                if count >= SHORTEST_RUN:
                    ends = list(accumulate(cost.seconds_run(step.features, count), initial=start))
                    del ends[0]
                    return Flight(step, start, ends[-1], ends)
        self._last_end = end = start + cost.seconds(step.features)
        self.recorder.step(step, start, end)
        return Flight(step, start, end)

    def _steps_until(self, time: float, start: float, step: Step) -> int:
        """About how many steps like this one start before `time`, two more than that."""
        first = self.cost.seconds(step.features)
        return (
            int(min((time - start) / first, LONGEST_RUN)) + 2 if first > 0 and time > start else 2
        )

    def _collect_run(
        self, flight: Flight, ends: Sequence[float]
    ) -> Generator[simpy.Event, Any, float]:
        """Let a run pass until it is over, or until something may change the plan.

        Returns:
            When the step behind the run is planned: at depth 1 at its end, at depth 2 when its
            last step starts.
        """
        env, depth = self.env, self.how.depth
        if self.feed.next <= flight.start:
            self.feed.deliver(flight.start)
        count = len(ends)
        wake = self.core.planner.wake
        if wake is not None:
            count = self._cut(flight, count, wake)
        if self.inbox:
            count = self._cut(flight, count, self.inbox[0].arrival)
        elif self.alone:
            count = self._cut(flight, count, self.feed.next)
        else:
            self._watch()
        try:
            until = ends[count - depth] if count >= depth else flight.start
            if env.peek() <= until:
                yield env.timeout(max(0.0, until - env.now))
        except simpy.Interrupt:
            count = self._cut(flight, count, self.inbox[0].arrival)
            until = ends[count - depth] if count >= depth else flight.start
            if env.peek() <= until:
                yield env.timeout(max(0.0, until - env.now))
        self._unwatch()
        if not self.alone:
            self._most = min(2 * count, LONGEST_RUN)
            if self.feed.next <= until:  # routed as of before this step's end
                self.feed.deliver(until)
        last, used = self.core.advance(flight.step, count)
        self.recorder.run(flight.step, flight.start, ends[:count], used)
        self._last_end = end = ends[count - 1]
        self._flight.popleft()
        if depth > 1:  # its last step is still running
            self._flight.appendleft(Flight(last, until, end))
            return until
        self.outstanding -= len(self.core.complete(last))
        return end

    def kv_used(self, now: float) -> int:
        """KV blocks held after the last step planned before `now`; 0 when idle."""
        if not self._flight:
            return 0
        flight = self._flight[-1]
        used = flight.step.blocks_used
        if flight.ends:
            ahead = self._cut(flight, len(flight.ends), now) - 1
            used += sum(flight.step.decodes.opening_run(ahead))
        return used

    def _cut(self, flight: Flight, count: int, time: float) -> int:
        """How many steps of a run are planned before `time`.

        At depth 1 a step is planned when the one before it ends, at depth 2 when that one starts.
        """
        before = bisect_left(flight.ends, time)  # as many plans follow the first
        if self.how.depth > 1:
            before += time > flight.start
        return min(count, 1 + before)

    def _sleep(self, until: float | None, now: float) -> Generator[simpy.Event, Any, float]:
        """Until the next arrival, or the time that the policy has asked for."""
        env = self.env
        if self.inbox:
            return self.inbox[0].arrival
        if until is not None and until <= now:
            raise PolicyError(f"the policy asks at {now:g} s to be woken at {until:g} s")
        self._watch()
        try:
            yield env.event() if until is None else env.timeout(max(0.0, until - env.now))
            assert until is not None
            return until
        except simpy.Interrupt:
            return max(now, self.inbox[0].arrival)
        finally:
            self._unwatch()


def first_replica(request: Request, replicas: Sequence[Replica]) -> Replica:
    """No choice: there is one."""
    return replicas[0]


def simulate(
    requests: Iterator[Request],
    engines: Sequence[tuple[Core, Recorder]],
    cost: CostModel | Sequence[CostModel],
    how: Options | Sequence[Options] | None = None,
    route: Router = first_replica,
) -> None:
    """Run the requests through the engines to the end; the recorders hold what happened.

    Args:
        requests: in order of arrival.
        engines: one a replica.
        cost: how long a step takes; one a replica where they differ.
        how: how the replicas are driven; one a replica where they differ.
        route: which replica a request goes to.

    Raises:
        PolicyError: requests are left that the policy will never schedule.
    """
    env = simpy.Environment()
    costs = cost if isinstance(cost, Sequence) else [cost] * len(engines)
    ways = how if isinstance(how, Sequence) else [how or Options()] * len(engines)
    replicas: list[Replica] = []
    feed = Feed(env, requests, lambda request: route(request, replicas).arrive(request))
    alone = len(engines) == 1
    replicas += [
        Replica(env, feed, *engine, price, way, alone)
        for engine, price, way in zip(engines, costs, ways, strict=True)
    ]
    env.timeout(inf)  # something is always due: `peek` is slow where nothing is
    collecting = gc.isenabled()
    gc.disable()  # millions of small objects live for a moment, and none of them in a cycle
    try:
        env.run()
    except Exception as error:  # SimPy raises a copy, without the file name of an OSError
        raise error.__cause__ or error from None
    finally:
        if collecting:
            gc.enable()
    left = sum(core.unfinished for core, _ in engines)
    if left:
        raise PolicyError(f"{left} requests are left waiting, and the policy asks for nothing more")
