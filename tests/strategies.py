"""Runs to draw: small traces full of corner cases, every sensible policy, and both ways to run one.

`real` runs the software; `naive` runs `tests.reference`. Setting LENGTHWISE_THOROUGH in the
environment draws twenty times as many.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from lengthwise.prepare import blocks_per_hash, requests_of
from policies.compose import Point, Settings, budget, compose
from policies.drain import Activations
from serving.assemble import assemble
from serving.core import Core
from serving.recorder import Recorder
from serving.step import Features
from sim.cost import CostModel
from sim.engine import Options, simulate
from sim.fixed import FixedCost
from sim.hardware import load_hardware
from sim.models import load_model
from sim.roofline import Roofline
from tests import reference
from traces import Trace
from traces.trace import BlockHashes

MANY = 20 if os.environ.get("LENGTHWISE_THOROUGH") else 1


def examples(count: int) -> settings:
    """How many examples a property draws."""
    return settings(
        max_examples=count * MANY,
        deadline=None,
        derandomize=MANY == 1,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


BOUNDS = (8, 16, 30)
BLOCK = 4
STEP_S = 0.05

POINTS: dict[str, Point] = {
    "-".join((grouping, layout, "drain")): Point(grouping, layout, "drain")
    for grouping in ("fcfs", "bucketing", "token-budget")
    for layout in ("limit", "bucket", "longest", "packed")
} | {
    "-".join((grouping, lifecycle)): Point(grouping, "packed", lifecycle)
    for grouping in ("fcfs", "bucketing", "token-budget")
    for lifecycle in ("continuous", "chunked-prefill")
}
"""Every sensible combination of the three layers; the six named policies are among them."""

ORDERS = ("fcfs", "priority", "shortest")


class EveryFeature:
    """A made-up cost in which every feature counts, none like another."""

    WEIGHTS = Features(*(0.0007 + 0.00013 * 1.37**i for i in range(len(Features._fields))))

    def seconds(self, f: Features) -> float:
        total = 0.001
        for weight, value in zip(self.WEIGHTS, f, strict=True):
            total = total + weight * value
        return total

    def seconds_run(self, f: Features, k: int) -> list[float]:
        ahead = np.arange(k)
        grown = f._replace(
            decode_useful_pairs=f.decode_useful_pairs + ahead * f.decode_tokens,
            decode_computed_pairs=f.decode_computed_pairs + ahead * f.decode_rows,
            decode_longest=f.decode_longest + ahead,
        )
        total = np.full(k, 0.001)
        for weight, value in zip(self.WEIGHTS, grown, strict=True):
            total = total + weight * value
        return list(total.tolist())


@cache
def cost_model(name: str) -> CostModel:
    if name == "fixed":
        return FixedCost(STEP_S)
    if name == "every":
        return EveryFeature()
    return Roofline(load_model("llama-3.1-8b"), load_hardware("h100"))


@dataclass(frozen=True)
class Case:
    """One run: what arrives, who decides, and what a step costs."""

    trace: Trace
    point: Point
    settings: Settings
    cost: str = "fixed"
    cuda_graphs: bool = False

    def __repr__(self) -> str:
        rows = list(
            zip(
                self.trace.arrival_s.tolist(),
                self.trace.prompt_tokens.tolist(),
                self.trace.output_tokens.tolist(),
                strict=True,
            )
        )
        hashes = self.trace.hashes
        more = {
            "priority": None if self.trace.priority is None else self.trace.priority.tolist(),
            "hashes": hashes and [hashes.row(i).tolist() for i in range(len(rows))],
        }
        return (
            f"Case({rows}, {more}, {self.point}, {self.settings}, {self.cost}, {self.cuda_graphs})"
        )


# Drawing


@st.composite
def traces(draw: st.DrawFn, hashed: bool = False, most: int = 12) -> Trace:
    """Ties, bursts and long gaps; prompts around bounds and blocks; 0, 1 or many outputs."""
    gaps = st.sampled_from([0.0, 0.0, 0.0, STEP_S, STEP_S, 0.01, 0.02, 0.07, 0.31, 1.0, 7.0])
    prompts = st.one_of(
        st.sampled_from([1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 30, 31, 40]), st.integers(1, 40)
    )
    outputs = st.one_of(
        st.sampled_from([0, 1, 2]), st.integers(1, 12), st.sampled_from([0, 1, 17, 40, 90])
    )
    rows = draw(
        st.lists(st.tuples(gaps, prompts, outputs, st.integers(-1, 2)), min_size=1, max_size=most)
    )
    arrivals = np.cumsum([gap for gap, *_ in rows]) - rows[0][0]
    prompt = [row[1] for row in rows]
    hashes = draw(block_hashes(prompt)) if hashed else None
    return Trace(
        arrivals,
        np.array(prompt),
        np.array([row[2] for row in rows]),
        np.array([row[3] for row in rows]),
        hashes,
    )


@st.composite
def block_hashes(draw: st.DrawFn, prompts: Sequence[int]) -> BlockHashes:
    """Prompts of three families, alike up to somewhere; an equal id means an equal beginning."""
    tokens = draw(st.sampled_from([BLOCK, BLOCK, 2 * BLOCK, 4 * BLOCK, 6]))
    ids: list[int] = []
    offsets = [0]
    for prompt in prompts:
        count = -(-prompt // tokens)
        family, shared = draw(st.integers(0, 1)), draw(st.integers(0, count))
        variant = draw(st.integers(1, 2))
        own = 10**6 * variant + 10**4 * shared
        ids += [100 * family + i + (own if i >= shared else 0) for i in range(count)]
        offsets.append(len(ids))
    return BlockHashes(np.array(ids, np.int64), np.array(offsets, np.int64), tokens)


@st.composite
def cases(
    draw: st.DrawFn,
    points: Sequence[str] = tuple(POINTS),
    depth: int | None = None,
    scarce: bool | None = None,
    cached: bool | None = None,
) -> Case:
    """A run under one of `points`; what is None is drawn too."""
    point = POINTS[draw(st.sampled_from(points))]
    drains = point.lifecycle == "drain"
    caching = not drains and (draw(st.booleans()) if cached is None else cached)
    trace = draw(traces(hashed=caching))
    limit = max(2, trace.longest - draw(st.sampled_from([0, 0, 0, 30])))
    room = draw(st.integers(2, 40))
    limited = draw(st.booleans()) if scarce is None else scarce
    if limited and scarce:  # near what one request needs
        room = -(-limit // BLOCK) + draw(st.integers(-1, 4))
    tokens: int | None = None
    if point.lifecycle == "continuous":
        tokens = limit + draw(st.integers(0, 20))
    elif point.lifecycle == "chunked-prefill":
        tokens = draw(st.sampled_from([1, 2, 3, 5, 8, 16, 33, 100]))
    elif point.grouping == "token-budget":
        tokens = draw(st.sampled_from([1, 8, 30, 64, 200]))
    activations = None
    if drains and draw(st.booleans()):
        activations = Activations(draw(st.integers(60, 600)), BLOCK, 1)
    asynchronous = draw(st.booleans()) if depth is None else depth == 2
    made = Settings(
        max_model_len=limit,
        max_num_seqs=draw(st.sampled_from([1, 2, 3, 4, 8])),
        max_num_batched_tokens=tokens,
        bucket_bounds=BOUNDS,
        max_wait=draw(st.sampled_from([0.0, 0.03, STEP_S, 0.4, 2.0])),
        order=draw(st.sampled_from(ORDERS)),
        block_size=BLOCK,
        usable_blocks=max(1, room) if limited else None,
        activations=activations,
        enable_prefix_caching=caching,
        blocks_per_hash=blocks_per_hash(trace, BLOCK),
        long_prefill_token_threshold=0 if drains else draw(st.sampled_from([0, 0, 3, 7])),
        watermark=0.0 if drains else draw(st.sampled_from([0.0, 0.0, 0.2])),
        async_scheduling=asynchronous,
    )
    cost = draw(st.sampled_from(["fixed", "every", "roofline"]))
    return Case(trace, point, made, cost, draw(st.booleans()))


# Running


def engine(case: Case, recorder: Recorder | None = None) -> tuple[Core, Recorder]:
    """The core that the case runs."""
    if recorder is None:  # an empty one is falsy
        recorder = Recorder()
    planner = compose(case.point, case.settings, recorder)
    return Core(planner, recorder, case.settings.max_model_len), recorder


def requests(case: Case) -> Any:
    return requests_of(case.trace, case.settings.block_size, case.settings.enable_prefix_caching)


Tables = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]


def written(case: Case, jump: bool = True) -> Recorder:
    """What the software writes down while it runs; its tables are made of this alone."""
    core, recorder = engine(case)
    how = Options(2 if case.settings.async_scheduling else 1, jump, case.cuda_graphs)
    simulate(requests(case), [(core, recorder)], cost_model(case.cost), how)
    return recorder


def real(case: Case, jump: bool = True) -> Tables:
    """The request, step and event tables that the software makes of it."""
    return assemble(case.trace, [written(case, jump)])


def naive(case: Case) -> reference.Result:
    """What the reference makes of it."""
    trace, size = case.trace, case.settings.block_size
    ids = trace.hashes if case.settings.enable_prefix_caching else None
    rows = [
        reference.Req(
            i,
            float(trace.arrival_s[i]),
            int(trace.prompt_tokens[i]),
            int(trace.output_tokens[i]),
            0 if trace.priority is None else int(trace.priority[i]),
            () if ids is None else _keys(ids, i, int(trace.prompt_tokens[i]), size),
        )
        for i in range(len(trace))
    ]
    return reference.simulate(
        rows,
        case.point,
        case.settings,
        budget(case.point, case.settings),
        cost_model(case.cost),
        case.cuda_graphs,
    )


def _keys(hashes: BlockHashes, i: int, prompt: int, size: int) -> list[tuple[int, int]]:
    """A block is known by the hash that covers its last token, and where in it that token is."""
    row, tokens = hashes.row(i).tolist(), hashes.block_tokens
    lasts = range(size - 1, prompt, size)
    return [(row[last // tokens], last % tokens) for last in lasts]


def differences(tables: Tables, wanted: reference.Result) -> list[str]:
    """Where the record differs from the reference's, to the last bit; empty where it does not.

    Grouping waits are compared to a nanosecond: the software reads them off one clock.
    """
    requests_, steps, events = tables
    found: list[str] = []
    rows = list(events.astype({"kind": str}).itertuples(index=False, name=None))
    found += _first("event", rows, wanted.events)
    want_steps = [
        (s.id, s.start, s.end, *s.features, s.waiting, s.running, s.used, s.preempted)
        for s in wanted.steps
    ]
    columns = ["step", "start_s", "end_s", *Features._fields]
    columns += ["waiting", "running", "kv_blocks_used", "preempted"]
    found += _first("step", list(steps[columns].itertuples(index=False, name=None)), want_steps)
    columns = ["scheduled_s", "first_token_s", "finished_s", "preemptions", "status"]
    got = [
        tuple(None if v != v else v for v in row)
        for row in requests_[columns].itertuples(index=False, name=None)
    ]
    want = [
        (r.scheduled, r.first, r.finished, r.preempted, "refused" if r.refused else "finished")
        for r in wanted.requests
    ]
    found += _first("request", got, want)
    waits = requests_["grouping_wait_s"].fillna(0.0).tolist()
    if not np.allclose(waits, [r.waited for r in wanted.requests], rtol=0, atol=1e-9):
        found.append(f"grouping waits {waits} but {[r.waited for r in wanted.requests]}")
    return found


def _first(what: str, got: list[Any], want: list[Any]) -> list[str]:
    for i in range(max(len(got), len(want))):
        mine = got[i] if i < len(got) else None
        theirs = want[i] if i < len(want) else None
        if mine != theirs:
            return [f"{what} {i} is {mine}, the reference has {theirs}"]
    return []


def same(one: Recorder, other: Recorder) -> bool:
    """Whether two runs wrote down the same, to the last bit."""
    a, b = one.step_columns(), other.step_columns()
    return (
        a.keys() == b.keys()
        and all(np.array_equal(a[name], b[name]) for name in a)
        and np.array_equal(one.event_rows(), other.event_rows())
        and one.waits == other.waits
        and [(r.index, why) for r, why in one.refused]
        == [(r.index, why) for r, why in other.refused]
    )
