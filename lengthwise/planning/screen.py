"""The best settings of one machine: each run at a rate that the best so far does not reach."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lengthwise.planning.parallel import Task, local
from lengthwise.planning.probe import Outcome, probe, search
from lengthwise.planning.search import LONELY, Found
from lengthwise.planning.settings import Candidate, neighbours
from traces import Trace

ALONG = 4
"""Settings that no other beats in every limit that are bisected too, besides the best."""

AT_A_TIME = 2
"""Settings better than the best so far that are bisected before the others are run again."""

NEAR = 1.2
"""Factor between the first two rates of a bisection that starts near its end."""

Told = Callable[[str], None]
"""Told what is going on."""

Worth = Callable[[Candidate, Outcome], float]
"""What a setting is worth at its highest rate, the more the better."""

Rounds = Generator[Sequence[Task], Sequence[Any], None]
"""Yields tasks that may run at once, and takes their results."""


@dataclass(eq=False)
class Screened:
    """What the screen of one machine's settings found, all on the screen's requests."""

    trace: Trace
    every: Sequence[Candidate]
    tolerance: float
    tell: Told
    worth: Worth
    refused: dict[int, str] = field(default_factory=dict)
    """Why settings cannot run, by number."""
    tried: dict[int, tuple[float, Outcome]] = field(default_factory=dict)
    """The last run of each setting that was not bisected: its scale, and what it says."""
    found: dict[int, Found[Outcome]] = field(default_factory=dict)
    """Settings whose highest rate was bisected, by number."""

    def rounds(self) -> Rounds:
        """Climb from the middle setting to the highest rate; then look along the front."""
        top = yield from self._reference()
        if top is not None:
            yield from self._climb(top)
            yield from self._widen()

    def _climb(self, top: Candidate) -> Rounds:
        """From `top` to better neighbours while there are any, then to any other that is better.

        Where the SLO holds for `top` at every rate, all others are run at its highest.
        """
        left = {c.number: c for c in self.every if c is not top and c.number not in self.refused}
        while left:
            limit = self.found[top.number].high is not None
            scale = self.scale(top) * (1 + self.tolerance if limit else 1)
            near = [c for c in neighbours(top, self.every) if limit and c.number in left]
            asked = near or list(left.values())
            self.tell(f"{len(asked):,} of {len(left):,} settings at {scale:.3g} × the trace's rate")
            passed = yield from self._at(asked, scale)
            ahead = sorted(passed, key=self._margin)[: AT_A_TIME if limit else None]
            yield from self._bisect(ahead)
            top = max(top, *ahead, key=self.scale) if ahead else top
            out = {c.number for c in asked} - {c.number for c in passed}
            left = {n: c for n, c in left.items() if n not in out and n not in self.found}

    def _widen(self) -> Rounds:
        """Bisect settings along the front, then neighbours of the best while they are new."""
        more = self._front()
        while more:
            yield from self._bisect(more)
            best = self.best()
            known = {*self.found, *self.refused}
            around = [] if best is None else neighbours(best, self.every)
            more = [c for c in around if c.number not in known]

    def best(self) -> Candidate | None:
        """What is worth most at its highest rate; None if no setting keeps the SLO."""
        able = [c for c in self.every if c.number in self.found and self.found[c.number].low]
        return max(able, key=lambda c: (self._worth(c), self.scale(c)), default=None)

    def _worth(self, candidate: Candidate) -> float:
        low = self.found[candidate.number].low
        assert low is not None
        return self.worth(candidate, low[1])

    def scale(self, candidate: Candidate) -> float:
        """The highest scale that a bisected candidate sustains; the least there is if none."""
        low = self.found[candidate.number].low
        return LONELY if low is None else low[0]

    def _margin(self, candidate: Candidate) -> float:
        """How near it came to a limit when it was run."""
        return self.tried[candidate.number][1].tightest[1]

    def _reference(self) -> Generator[Sequence[Task], Sequence[Any], Candidate | None]:
        """The middle setting of those that can run, bisected."""
        order = sorted(
            self.every, key=lambda c: abs(c.number - self.every[0].number - len(self.every) // 2)
        )
        for candidate in order:
            yield from self._bisect([candidate])
            if candidate.number in self.found:
                return candidate
        return None

    def _bisect(self, chosen: Sequence[Candidate]) -> Rounds:
        """Bisect some, each from where it was run before."""
        if not chosen:
            return
        self.tell(f"bisecting {', '.join(c.label for c in chosen)}")
        tasks: list[Task] = []
        for candidate in chosen:
            start, known = self.tried.get(candidate.number, (1.0, None))
            factor = 2.0 if known is None else NEAR
            asked = (candidate.config, self.trace, start, self.tolerance, factor, None, known)
            tasks.append((or_why, (search, *asked)))
        for candidate, found in zip(chosen, (yield tasks), strict=True):
            self.tried.pop(candidate.number, None)
            if isinstance(found, str):
                self.refused[candidate.number] = found
            else:
                self.found[candidate.number] = found

    def _at(
        self, chosen: Sequence[Candidate], scale: float
    ) -> Generator[Sequence[Task], Sequence[Any], list[Candidate]]:
        """Run all at one scale; those that sustain it."""
        tasks: list[Task] = [(or_why, (probe, c.config, self.trace, scale)) for c in chosen]
        passed = []
        for candidate, outcome in zip(chosen, (yield tasks), strict=True):
            if isinstance(outcome, str):
                self.refused[candidate.number] = outcome
                continue
            self.tried[candidate.number] = scale, outcome
            if outcome.sustained:
                passed.append(candidate)
        return passed

    def _front(self) -> list[Candidate]:
        """Settings run once that no other beats in every limit, the nearest to the limits first."""
        runs = [c for c in self.every if c.number in self.tried]
        margins = {c.number: tuple(self.tried[c.number][1].margins.values()) for c in runs}
        front: dict[tuple[float, ...], Candidate] = {}
        for candidate in sorted(runs, key=self._margin):
            own = margins[candidate.number]
            if not any(all(a <= b for a, b in zip(m, own, strict=True)) for m in front):
                front[own] = candidate
        return list(front.values())[:ALONG]


def together(screens: Sequence[Screened], jobs: int) -> None:
    """Run the screens of several machines side by side, a round of each at a time."""
    waiting = [(rounds, next(rounds, None)) for rounds in (s.rounds() for s in screens)]
    while going := [(rounds, tasks) for rounds, tasks in waiting if tasks is not None]:
        results = iter(local([task for _, tasks in going for task in tasks], jobs))
        waiting = []
        for rounds, tasks in going:
            try:
                waiting.append((rounds, rounds.send([next(results) for _ in tasks])))
            except StopIteration:
                continue


def or_why(task: Callable[..., object], *args: object) -> object:
    """A task's result, or why its settings cannot run."""
    try:
        return task(*args)
    except ValueError as error:
        return str(error)
