"""Time, measured: the loop against a real clock, steps launched on a real model."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import NamedTuple, Protocol

from executor.inputs import Batch, Inputs
from executor.runner import Ended, Runner, Running
from serving.core import Core
from serving.recorder import Recorder
from serving.request import Request
from serving.step import Step, Wait
from sim.engine import PolicyError
from sim.graphs import pad_decode


class Launcher(Protocol):
    """Starts steps."""

    def launch(self, batch: Batch) -> Running:
        """Start a step behind those that run."""


class InThread:
    """Steps of a CPU, run by a thread of their own: the next is planned while one runs."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._pool = ThreadPoolExecutor(1, "model")

    def launch(self, batch: Batch) -> Running:
        """Hand a step to the thread, which runs them in order."""
        return _Promised(self._pool.submit(self._run, batch))

    def _run(self, batch: Batch) -> float:
        return self._runner.launch(batch).wait()

    def close(self) -> None:
        """End the thread when its steps are done."""
        self._pool.shutdown()


class _Promised:
    """A step that another thread runs."""

    def __init__(self, seconds: Future[float]) -> None:
        self._seconds = seconds

    def wait(self) -> float:
        """Wait for it; seconds that it took."""
        return self._seconds.result()


@dataclass
class Stop:
    """Whether somebody has asked for the run to end early."""

    asked: bool = False


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """Ctrl-C asks for an end behind the steps in flight; a second one ends at once.

    An exception in the middle of a step would leave half of it in the record. Outside the main
    thread, where there are no signals, nothing changes.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: FrameType | None) -> None:
        stop.asked = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass
class Spent:
    """Where the time of a run went, s."""

    wall_s: float = 0.0
    model_s: float = 0.0
    """In the model's steps, as the device counts it."""
    idle_s: float = 0.0
    """With nothing to run."""

    @property
    def outside_s(self) -> float:
        """In the loop: planning, preparing inputs, recording, waiting for the device."""
        return self.wall_s - self.model_s - self.idle_s


class _Flight(NamedTuple):
    step: Step
    launched: float  # s
    running: Running


@dataclass
class Driver:
    """One engine on a real clock.

    Args:
        core: the loop.
        recorder: where steps go, each when it has ended.
        inputs: makes batches of steps.
        launcher: runs them.
        depth: steps in flight; 2: a step is planned and launched while one runs.
        stop: asked between steps whether to go on.
        graphs: decode steps run at recorded sizes (see `Graphs`), and are written down so.
    """

    core: Core
    recorder: Recorder
    inputs: Inputs
    launcher: Launcher
    depth: int = 1
    stop: Stop = field(default_factory=Stop)
    graphs: bool = False

    def run(self, requests: Iterator[Request]) -> Spent:
        """Run to the end, arrivals at their times from now on.

        Args:
            requests: in order of arrival.

        Raises:
            PolicyError: requests are left that the policy will never schedule.
        """
        self._requests, self._spent = requests, Spent()
        self._ahead = next(requests, None)
        self._flight: deque[_Flight] = deque()
        self._last_end = 0.0
        self._zero = time.perf_counter()
        while self._turn():
            pass
        self._spent.wall_s = self._now()
        return self._spent

    def _now(self) -> float:
        return time.perf_counter() - self._zero

    def _turn(self) -> bool:
        """Launch what can be launched, then let the oldest step end; False when all is over."""
        wait, asked = Wait(), 0.0
        while len(self._flight) < self.depth and not self.stop.asked:
            asked = self._now()
            self._take_in(asked)
            planned = self.core.plan(asked)
            if isinstance(planned, Wait):
                wait = planned
                break
            self._launch(planned)
        if self._flight:
            self._collect(self._flight.popleft())
            return True
        return not self.stop.asked and self._idle(wait.until, asked)

    def _take_in(self, now: float) -> None:
        while self._ahead is not None and self._ahead.arrival <= now:
            self.core.add(self._ahead)
            self._ahead = next(self._requests, None)

    def _launch(self, step: Step) -> None:
        batch = self.inputs.batch(step)
        if self.graphs:
            step = step._replace(features=pad_decode(step.features))
        launched = self._now()
        # a step may have nothing to compute (see `Step`)
        running = Ended(0.0) if batch is None else self.launcher.launch(batch)
        self._flight.append(_Flight(step, launched, running))

    def _collect(self, flight: _Flight) -> None:
        seconds = flight.running.wait()
        start = max(flight.launched, self._last_end)
        empty = isinstance(flight.running, Ended) and not seconds
        self._last_end = start if empty else self._now()
        self._spent.model_s += seconds
        self.recorder.step(flight.step, start, self._last_end)
        self.core.complete(flight.step)

    def _idle(self, until: float | None, asked: float) -> bool:
        """Until the next arrival, or the time the policy asks for; False if neither will come."""
        if until is not None and until <= asked:
            raise PolicyError(f"the policy asks at {asked:g} s to be woken at {until:g} s")
        if self._ahead is not None:
            until = self._ahead.arrival if until is None else min(until, self._ahead.arrival)
        if until is None:
            if self.core.unfinished:
                raise PolicyError(
                    f"{self.core.unfinished} requests are left waiting, and the policy asks for "
                    "nothing more"
                )
            return False
        idle = self._now()
        # polls, as engines do: one that has slept takes up to a fifth longer for the next step
        while self._now() < until and not self.stop.asked:
            time.sleep(0)
        self._spent.idle_s += self._now() - idle
        return True
