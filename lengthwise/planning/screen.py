"""The best settings of one machine: each run at a rate that the best so far does not reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lengthwise.planning.parallel import Task, local
from lengthwise.planning.probe import Outcome, probe, search
from lengthwise.planning.search import LONELY, Found
from lengthwise.planning.settings import Candidate, neighbours
from traces import Trace

ALONG = 4
"""Settings along the front of the first screen that are bisected too, besides the best."""

Told = Callable[[str], None]
"""Told what is going on."""


@dataclass(eq=False)
class Screened:
    """What the screen of one machine's settings found, all on the screen's requests."""

    trace: Trace
    every: Sequence[Candidate]
    tolerance: float
    jobs: int
    tell: Told
    refused: dict[int, str] = field(default_factory=dict)
    """Why settings cannot run, by number."""
    tried: dict[int, tuple[float, Outcome]] = field(default_factory=dict)
    """The last run of each setting that was not bisected: its scale, and what it says."""
    found: dict[int, Found[Outcome]] = field(default_factory=dict)
    """Settings whose highest rate was bisected, by number."""

    def run(self) -> None:
        """Screen, then bisect the best, those along the front, and the best one's neighbours."""
        reference = self._reference()
        if reference is None:
            return
        left = [c for c in self.every if c.number not in self.refused and c is not reference]
        best, first = reference, True
        while left:
            scale = self.scale(best) * (1 + self.tolerance)
            self.tell(f"{len(left):,} settings at {scale:.3g} × the trace's rate")
            passed = self._at(left, scale)
            if first:
                front = self._front(passed)
                first = False
            if not passed:
                break
            best = min(passed, key=lambda c: self.tried[c.number][1].tightest[1])
            self.tell(f"bisecting {best.label}")
            self._bisect([best], scale)
            if self.found[best.number].high is None:
                break
            left = [c for c in passed if c is not best]
        near = neighbours(best, [c for c in self.every if c.number not in self.refused])
        more = {c.number: c for c in (*near, *(front if not first else []))}
        self.tell(f"bisecting {len(more)} neighbours and others along the front")
        self._bisect([c for n, c in more.items() if n not in self.found], self.scale(best))

    def scale(self, candidate: Candidate) -> float:
        """The highest scale that a bisected candidate sustains; the least there is if none."""
        low = self.found[candidate.number].low
        return LONELY if low is None else low[0]

    def _reference(self) -> Candidate | None:
        """The middle setting of those that can run, bisected."""
        order = sorted(
            self.every, key=lambda c: abs(c.number - self.every[0].number - len(self.every) // 2)
        )
        for candidate in order:
            self.tell(f"bisecting {candidate.label}")
            self._bisect([candidate], 1.0)
            if candidate.number in self.found:
                return candidate
        return None

    def _bisect(self, chosen: Sequence[Candidate], start: float) -> None:
        tasks: list[Task] = [
            (or_why, (search, c.config, self.trace, start, self.tolerance)) for c in chosen
        ]
        for candidate, found in zip(chosen, local(tasks, self.jobs), strict=True):
            if isinstance(found, str):
                self.refused[candidate.number] = found
            else:
                self.found[candidate.number] = found

    def _at(self, chosen: Sequence[Candidate], scale: float) -> list[Candidate]:
        """Run all at one scale; those that sustain it."""
        tasks: list[Task] = [(or_why, (probe, c.config, self.trace, scale)) for c in chosen]
        passed = []
        for candidate, outcome in zip(chosen, local(tasks, self.jobs), strict=True):
            if isinstance(outcome, str):
                self.refused[candidate.number] = outcome
                continue
            self.tried[candidate.number] = scale, outcome
            if outcome.sustained:
                passed.append(candidate)
        return passed

    def _front(self, passed: Sequence[Candidate]) -> list[Candidate]:
        """Of those that sustain one rate, settings that no other beats in every limit."""
        margins = {c.number: tuple(self.tried[c.number][1].margins.values()) for c in passed}
        front: dict[tuple[float, ...], Candidate] = {}
        for candidate in sorted(passed, key=lambda c: max(margins[c.number])):
            own = margins[candidate.number]
            if not any(all(a <= b for a, b in zip(m, own, strict=True)) for m in front):
                front[own] = candidate
        return list(front.values())[:ALONG]


def or_why(task: Callable[..., object], *args: object) -> object:
    """A task's result, or why its settings cannot run."""
    try:
        return task(*args)
    except ValueError as error:
        return str(error)
