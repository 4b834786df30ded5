"""From a trace and an SLO to GPUs and settings: the answers, each with the runs behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.cluster import prepare_run
from lengthwise.planning.parallel import Task, local
from lengthwise.planning.probe import Outcome, probe, search
from lengthwise.planning.screen import NEAR, Screened, Told, together
from lengthwise.planning.search import Found
from lengthwise.planning.settings import Candidate
from lengthwise.planning.why import Why, first_to_fail, why
from serving.record import Record
from sim.range import range_of
from traces import Trace
from traces.edit import rebased

MOST_REPLICAS = 4096


class PlanError(ValueError):
    """A question that has no answer, and why."""


@dataclass(frozen=True)
class Asked:
    """What a plan is asked."""

    trace: Trace
    """At its own rate."""
    candidates: Sequence[Candidate]
    own_scale: float = 1.0
    """At how many times its own rate the trace has to be served."""
    router: str | None = None
    tolerance: float = 0.02
    """Of the highest rate."""
    screen: int = 3000
    """Requests on which settings are screened; the answers are of the whole trace."""
    prices: Mapping[str, float] | None = None
    """Dollars for an hour of a GPU, by hardware; without them goodput per GPU decides."""
    jobs: int = -1


@dataclass(frozen=True)
class Answer:
    """The best settings of one machine, on the whole trace."""

    candidate: Candidate
    found: Found[Outcome]
    """The highest rate one replica sustains."""
    fewest: int | None
    """Replicas that the trace needs; None if no number does."""
    clusters: Mapping[int, Outcome]
    """The runs behind that, by replicas."""

    @property
    def at(self) -> Outcome:
        """The run at the highest rate."""
        assert self.found.low is not None
        return self.found.low[1]

    @property
    def scale(self) -> float:
        """The highest rate, of the trace's own."""
        assert self.found.low is not None
        return self.found.low[0]


@dataclass(frozen=True)
class Range:
    """The answer at both ends of the cost model's range."""

    said: str
    slower: tuple[float | None, int | None]
    """The highest rate (requests/s) and the fewest replicas if steps take longer."""
    faster: tuple[float | None, int | None]


@dataclass(frozen=True)
class Plan:
    """All that a plan found."""

    asked: Asked
    screens: Sequence[Screened]
    answers: Sequence[Answer]
    """Of each machine that can keep the SLO, best first."""
    range: Range | None
    why: Why
    limit: str
    """The limit that goes first, or `queue`."""

    @property
    def best(self) -> Answer:
        """The recommendation."""
        return self.answers[0]


def own_rate(trace: Trace) -> float:
    """Requests a second.

    Raises:
        PlanError: a trace that has no rate.
    """
    if len(trace) < 2 or not trace.span_s:
        raise PlanError(
            f"{trace.name}: {len(trace)} requests within {trace.span_s:g} s have no rate; give a "
            "trace whose requests arrive one after the other"
        )
    return (len(trace) - 1) / trace.span_s


def scale_of(trace: Trace, rate: float) -> float:
    """How many times its own rate a trace has at `rate` requests/s.

    Raises:
        PlanError: a trace that has no rate, a rate that is not above 0.
    """
    if not 0 < rate < math.inf:
        raise PlanError(f"--rate must be above 0 requests/s, not {rate:g}")
    return rate / own_rate(trace)


def per_gpu(figures: Mapping[str, Any], gpus: int) -> float:
    """Goodput a GPU, requests/s; throughput where no limit is on a request."""
    good = figures["request_goodput"]
    return float(figures["request_throughput"] if good is None else good) / gpus


def dollars(figures: Mapping[str, Any], gpus: int, price: float) -> float:
    """Dollars for a million output tokens: `price` is of an hour of one GPU."""
    tokens_per_hour = float(figures["output_throughput"]) * 3600
    return price * gpus / tokens_per_hour * 1e6 if tokens_per_hour else math.inf


def make_plan(asked: Asked, folder: Path, tell: Told = lambda what: None) -> Plan:
    """Answer, and save the runs behind the answers under `folder`.

    Raises:
        PlanError: a trace that has no rate, an SLO that nothing keeps, no setting that can run.
        ValueError: the user's mistake.
    """
    own_rate(asked.trace)
    machines: dict[tuple[Any, ...], list[Candidate]] = {}
    for candidate in asked.candidates:
        machines.setdefault(candidate.machine, []).append(candidate)
    part = busiest(asked.trace, asked.screen)

    def worth(candidate: Candidate, outcome: Outcome) -> float:
        return -_badness(asked, candidate, outcome)

    screens = [Screened(part, every, asked.tolerance, tell, worth) for every in machines.values()]
    together(screens, asked.jobs)
    winners = _winners(screens)
    _refuse(asked, screens, winners)
    tell("the best of each machine on the whole trace")
    answers = _answers(asked, winners, folder)
    best = answers[0]
    tell("the range of the cost model")
    ends = _range(asked, best, folder)
    tell("saving the runs behind the answers")
    record = _save(asked, best, folder)
    limit = first_to_fail(best.at, None if best.found.high is None else best.found.high[1])
    return Plan(asked, screens, answers, ends, why(record), limit)


def busiest(trace: Trace, count: int) -> Trace:
    """The `count` requests in a row that come fastest, first at 0: what limits the whole trace."""
    if count >= len(trace):
        return trace
    spans = trace.arrival_s[count - 1 :] - trace.arrival_s[: len(trace) - count + 1]
    first = int(np.argmin(np.where(spans > 0, spans, np.inf)))  # no rate shows in one moment
    return rebased(trace.take(np.arange(first, first + count)))


def _winners(screens: Sequence[Screened]) -> list[tuple[Candidate, float]]:
    """The best of each machine on the screen's requests, and the scale it sustains there."""
    bests = [(screened, screened.best()) for screened in screens]
    return [(best, screened.scale(best)) for screened, best in bests if best is not None]


def _refuse(
    asked: Asked, screens: Sequence[Screened], winners: Sequence[tuple[Candidate, float]]
) -> None:
    """Say so where there is nothing to choose from, or no rate to speak of."""
    runs = [r for s in screens for f in s.found.values() for r in f.runs]
    if not runs:
        reasons = list(dict.fromkeys(why for s in screens for why in s.refused.values()))
        raise PlanError(f"no setting can run: {'; '.join(reasons[:3])}")
    alone = min((o.figures["mean_e2el_ms"] or 0.0) for _, o in runs) / 1e3
    span = asked.trace.span_s / asked.own_scale
    if span < alone:
        raise PlanError(
            f"{asked.trace.name}: all its requests arrive within {span:.3g} s, less than the "
            f"{alone:.3g} s that one of them takes: it shows no rate. Give a longer trace"
        )
    if not winners:
        nearest = min((o for _, o in runs), key=lambda outcome: outcome.tightest[1])
        raise PlanError(
            f"no setting keeps the SLO at any rate: at best, with every request alone, "
            f"{nearest.said}. Allow more, or take other hardware with --vary hardware=…"
        )


def _answers(
    asked: Asked, winners: Sequence[tuple[Candidate, float]], folder: Path
) -> list[Answer]:
    """Of each machine's best: the highest rate and the fewest replicas, on the whole trace."""
    tasks: list[Task] = [
        (serve, (asked, c, scale, NEAR, None, str(folder / _plain(c.label))))
        for c, scale in winners
    ]
    served = local(tasks, asked.jobs)
    answers = [
        Answer(candidate, found, count, clusters)
        for (candidate, _), (found, count, clusters) in zip(winners, served, strict=True)
        if found.low is not None
    ]
    if not answers:
        raise PlanError(
            f"what keeps the SLO on the busiest {asked.screen:,} requests does not on the whole "
            "trace, at any rate; raise --screen-requests"
        )
    return sorted(answers, key=lambda answer: _badness(asked, answer.candidate, answer.at))


def _badness(asked: Asked, candidate: Candidate, outcome: Outcome) -> float:
    """What decides, the smaller the better: dollars a token, or GPUs a good request."""
    if asked.prices is None:
        return -per_gpu(outcome.figures, candidate.gpus)
    return dollars(outcome.figures, candidate.gpus, asked.prices[candidate.hardware])


def _plain(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in label)


def serve(
    asked: Asked, candidate: Candidate, start: float, factor: float, end: str | None, folder: str
) -> tuple[Found[Outcome], int | None, dict[int, Outcome]]:
    """The highest rate of one replica on the whole trace, and the fewest replicas for it.

    Args:
        asked: the trace, its rate and the router.
        candidate: the settings.
        start: of its own rate, where the search begins.
        factor: between the first two rates.
        end: of the cost model's range.
        folder: where the runs of the replicas are saved.
    """
    found = search(candidate.config, asked.trace, start, asked.tolerance, factor, end)
    if found.low is None:
        return found, None, {}
    return found, *fewest(asked, candidate, found.low[0], end, folder)


def fewest(
    asked: Asked, candidate: Candidate, scale: float, end: str | None, folder: str
) -> tuple[int | None, dict[int, Outcome]]:
    """The fewest replicas that keep the SLO at the trace's own rate, and the runs that say so.

    Args:
        asked: the trace, its rate and the router.
        candidate: the settings of each replica.
        scale: what one replica sustains, about.
        end: of the cost model's range.
        folder: each run's record is saved under it, as `replicas-N`.
    """
    tried: dict[int, Outcome] = {}

    def enough(count: int) -> bool:
        config = candidate.config.model_copy(update={"replicas": count})
        if count > 1:
            config = config.model_copy(update={"router": asked.router})
        name = f"{folder}/replicas-{count}"
        tried[count] = probe(config, asked.trace, asked.own_scale, end, name)
        return tried[count].sustained

    low, count = 0, max(1, math.ceil(asked.own_scale / scale * (1 - asked.tolerance)))
    while not enough(count):
        low = count
        if count >= MOST_REPLICAS or count > 2 * len(asked.trace):
            return None, tried
        count += max(1, count // 4)
    while count - low > 1:
        less = max(low + 1, count - max(1, count // 8))
        if enough(less):
            count = less
        else:
            low = less
    return count, tried


def _range(asked: Asked, best: Answer, folder: Path) -> Range | None:
    """The best answer once more at both ends of its cost model's range."""
    ready = prepare_run(best.candidate.config, asked.trace)
    found = range_of(ready.cost)
    if found is None:
        return None
    tasks: list[Task] = [
        (serve, (asked, best.candidate, best.scale, 1.1, end, str(folder / f"range-{end}")))
        for end in ("slower", "faster")
    ]
    told = [
        (None if rates.low is None else rates.low[1].rate, count)
        for rates, count, _ in local(tasks, asked.jobs)
    ]
    return Range(found.said, told[0], told[1])


def _save(asked: Asked, best: Answer, folder: Path) -> Record:
    """Run the best once more at its highest rate, and just beyond; returns the more telling one."""
    kept = {"sustained": best.found.low, "beyond": best.found.high}
    runs = {name: run for name, run in kept.items() if run is not None}
    tasks: list[Task] = [
        (probe, (best.candidate.config, asked.trace, scale, None, str(folder / name)))
        for name, (scale, _) in runs.items()
    ]
    for (name, (_, before)), again in zip(runs.items(), local(tasks, asked.jobs), strict=True):
        if again != before:
            raise RuntimeError(f"{name}: the same run came out differently")
    return Record.load(folder / list(runs)[-1])
