"""Plans: bisection against a grid, saturation against theory, what binds, and no answer at all."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import lengthwise
from lengthwise.cli import build
from lengthwise.config import RunConfig
from lengthwise.planning.front import pareto
from lengthwise.planning.plan import Asked, PlanError, busiest, fewest, make_plan
from lengthwise.planning.probe import probe, search
from lengthwise.planning.saturation import growth
from lengthwise.planning.search import LONELY, highest
from lengthwise.planning.settings import candidates, neighbours, parse_prices, parse_vary
from lengthwise.planning.why import why
from serving.record import Record
from tests.test_theory import STEP, one_token, poisson
from traces import Trace

TOLERANCE = 0.05


# Bisection


@dataclass(frozen=True)
class Below:
    """Sustained up to a rate, overlapping up to another."""

    sustained: bool
    overlaps: bool = True


@given(st.floats(1e-4, 1e4), st.floats(1e-3, 1e3), st.sampled_from([0.01, 0.2]))
def test_bisection_encloses_the_limit(limit: float, start: float, tolerance: float) -> None:
    found = highest(lambda scale: Below(scale <= limit), start, tolerance)
    assert found.low is not None
    assert found.high is not None
    assert found.low[0] <= limit < found.high[0] <= found.low[0] * (1 + tolerance)
    assert len(found.runs) < 60


@given(st.floats(1e-4, 1e4), st.floats(1e-3, 1e3))
def test_what_is_known_is_not_run_again(limit: float, start: float) -> None:
    asked: list[float] = []

    def probe(scale: float) -> Below:
        asked.append(scale)
        return Below(scale <= limit)

    fresh = highest(probe, start, 0.02)
    before = list(asked)
    asked.clear()
    assert highest(probe, start, 0.02, known=Below(start <= limit)) == fresh
    assert asked == before[1:]


def test_limits_that_nothing_and_everything_keeps() -> None:
    never = highest(lambda scale: Below(False), 1.0, 0.1)
    assert never.low is None
    assert [scale for scale, _ in never.runs] == [1.0, 0.5, LONELY]
    always = highest(lambda scale: Below(True), 1.0, 0.1)
    assert always.high is None
    hardly = highest(lambda scale: Below(scale < 2 * LONELY), 1.0, 0.5)
    assert hardly.low is not None
    assert LONELY <= hardly.low[0] < 2 * LONELY
    short = highest(lambda scale: Below(True, scale < 10), 1.0, 0.1)
    assert short.high is None
    assert short.runs[-1][0] >= 10 > short.runs[-2][0]


@pytest.mark.parametrize("policy", ["chunked-prefill", "continuous"])
@pytest.mark.parametrize(
    ("workload", "slo"),
    [
        ("chat", {"ttft_p99_ms": 800, "tpot_p99_ms": 40}),
        ("code", {"ttft_p90_ms": 400}),
        ("long-context", {"ttft_p99_ms": 20_000, "e2el_mean_ms": 30_000}),
    ],
)
def test_bisection_agrees_with_a_grid_over_rates(
    workload: str, slo: dict[str, float], policy: str
) -> None:
    """Every rate of a grid up to the answer is sustained, and none above it is."""
    trace = lengthwise.load_trace(workload, limit=100, seed=2)
    config = RunConfig.of(policy=policy, hardware="h100", slo=slo, trace=workload)
    found = search(config, trace, 1.0, TOLERANCE)
    assert found.low is not None
    assert found.high is not None
    grid = found.low[0] * (1 + TOLERANCE) ** np.arange(-4, 5)
    kept = [probe(config, trace, float(scale)).sustained for scale in grid]
    brute = max(scale for scale, good in zip(grid, kept, strict=True) if good)
    assert found.low[0] / (1 + TOLERANCE) < brute < found.high[0] * (1 + TOLERANCE)
    assert found.low[1] == probe(config, trace, found.low[0])  # common random numbers


# Saturation, by the growth of the queue


def queue_at(load: float) -> Record:
    arrivals = poisson(load, 6000, seed=11)
    return lengthwise.replay(one_token(arrivals), cost="fixed", step_ms=STEP * 1e3, max_num_seqs=1)


@pytest.mark.parametrize(
    ("load", "saturated"), [(0.5, False), (0.9, False), (1.1, True), (3, True)]
)
def test_a_queue_grows_where_the_load_is_above_one(load: float, saturated: bool) -> None:
    """M/D/1: above a load of 1 the queue grows by 1 - 1/load of what arrives, below it does not."""
    grown = growth(queue_at(load))
    assert grown.saturated is saturated
    if saturated:
        assert grown.share == pytest.approx(1 - 1 / load, rel=0.15)


def test_a_limit_far_off_is_not_what_saturates() -> None:
    """Every request is far within its limit, and the queue grows all the same."""
    arrivals = poisson(1.2, 3000, seed=3)
    config = RunConfig.of(
        cost="fixed", step_ms=STEP * 1e3, max_num_seqs=1, slo={"ttft_p99_ms": 1e9}
    )
    found = search(config, one_token(arrivals), 1.0, 0.02)
    assert found.low is not None
    assert found.high is not None
    assert all(limit["met"] for limit in found.high[1].limits.values())
    assert found.low[1].rate == pytest.approx(1 / STEP, rel=0.06)  # one a step, no more


# Replicas


def test_the_fewest_replicas_are_those_of_a_count_from_one(tmp_path: Path) -> None:
    trace = lengthwise.load_trace("chat", limit=300)
    (only,) = candidates(RunConfig.of(hardware="l40s", slo={"ttft_p99_ms": 1500}), {"tp": [1]})
    asked = Asked(trace, [only], own_scale=2.5)
    found, runs = fewest(asked, only, 0.5, None, str(tmp_path))
    kept = []
    for count in range(1, 9):
        record = lengthwise.replay(
            trace.at_rate(2.5), hardware="l40s", replicas=count, slo={"ttft_p99_ms": 1500}
        )
        kept.append(record.summary["slo_met"] and not growth(record).saturated)
    assert found == kept.index(True) + 1 > 1
    assert not runs[found - 1].sustained
    saved = Record.load(tmp_path / f"replicas-{found}").summary
    assert saved["p99_ttft_ms"] == runs[found].figures["p99_ttft_ms"]


# What binds


@pytest.mark.parametrize(
    ("options", "limit", "binds"),
    [
        ({"max_num_seqs": 4}, "ttft_p99_ms", "seats"),
        ({"num_gpu_blocks_override": 700}, "ttft_p99_ms", "KV"),
        ({"max_num_batched_tokens": 4096}, "ttft_p99_ms", "compute"),
        ({"max_num_seqs": 64}, "tpot_p99_ms", "bandwidth"),
    ],
)
def test_what_binds_is_what_was_made_short(options: dict[str, Any], limit: str, binds: str) -> None:
    record = lengthwise.replay("chat", limit=250, rate_scale=5, **options)
    assert why(record).binds(limit) == binds


# The whole


SLO = "ttft_p99_ms=1000,tpot_p99_ms=50"


def planned(*words: str, folder: Path) -> Any:
    argv = ["plan", *words, "--out", str(folder), "--jobs", "1", "--quiet"]
    return CliRunner().invoke(build(argv), argv)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    folder = tmp_path_factory.mktemp("plans") / "chat"
    settings = ["--vary", "max-num-seqs=16,256", "--vary", "max_num_batched_tokens=1024,8192"]
    more = ["--vary", "hardware=h100,l40s", "--limit", "100", "--gpu-hour-price", "h100=2.5,l40s=1"]
    done = planned("chat", "--slo", SLO, *settings, *more, folder=folder)
    assert done.exit_code == 0, done.output
    return folder, json.loads((folder / "summary.json").read_text()), done.output


def test_the_recommendation_is_what_a_plain_replay_gives(
    plan: tuple[Path, dict[str, Any], str], tmp_path: Path
) -> None:
    folder, answer, said = plan
    words = shlex.split(answer["command"])
    assert answer["command"] in said
    argv = [*words[1:], "--out", str(tmp_path / "again"), "--quiet"]
    assert CliRunner().invoke(build(argv), argv).exit_code == 0
    summary = Record.load(tmp_path / "again").summary
    assert {name: summary[name] for name in answer["figures"]} == answer["figures"]
    assert summary["slo_met"]
    assert summary == Record.load(folder / "sustained").summary
    beyond = Record.load(folder / "beyond")
    assert growth(beyond).saturated or not beyond.summary["slo_met"]


def test_no_setting_of_the_grid_is_better(plan: tuple[Path, dict[str, Any], str]) -> None:
    """By brute force: every other setting bisected on its own."""
    folder, answer, _ = plan
    table = pd.read_parquet(folder / "settings.parquet")
    assert len(table) == 8 + 2
    trace = lengthwise.load_trace("chat", limit=100)
    best = answer["dollars_per_m_output"]
    for hardware, price in (("h100", 2.5), ("l40s", 1.0)):
        every = candidates(
            RunConfig.of(trace="chat", hardware=hardware, slo=SLO),
            {"max_num_seqs": [16, 256], "max_num_batched_tokens": [1024, 8192]},
        )
        for candidate in every:
            found = search(candidate.config, trace, 1.0, 0.02)
            if found.low is not None:
                tokens = found.low[1].figures["output_throughput"] * 3600
                assert price / tokens * 1e6 > best / 1.03


def test_of_settings_that_sustain_every_rate_the_one_worth_most_wins(tmp_path: Path) -> None:
    seats = ("--vary", "max-num-seqs=8,16,32")
    done = planned(
        "chat", "--limit", "60", "--slo", "ttft_p99_ms=1e9", *seats, folder=tmp_path / "p"
    )
    assert done.exit_code == 0, done.output
    table = pd.read_parquet(tmp_path / "p" / "settings.parquet")
    screen = table[table["found"] == "bisected"].set_index("max_num_seqs")
    assert list(screen.index) == [8, 16, 32]
    assert screen["rate"].nunique() == 1
    answer = json.loads((tmp_path / "p" / "summary.json").read_text())
    assert answer["settings"]["max_num_seqs"] == screen["goodput_per_gpu"].idxmax() == 32


def test_the_range_lies_on_both_sides(plan: tuple[Path, dict[str, Any], str]) -> None:
    _, answer, said = plan
    slower, faster = answer["range"]["slower"], answer["range"]["faster"]
    assert slower["rate"] < answer["rate"] < faster["rate"]
    assert slower["replicas"] >= answer["replicas"] >= faster["replicas"]
    assert "±6.5%, the largest mean error of the roofline's kernels" in said


def test_neighbours_differ_in_one_step() -> None:
    every = candidates(RunConfig.of(slo=SLO), {"max_num_seqs": [8, 16, 32], "tp": [1, 2]})
    found = {tuple(c.setting.values()) for c in neighbours(every[2], every)}
    assert found == {(8, 1), (32, 1), (16, 2)}


def test_pareto_by_brute_force() -> None:
    draw = np.random.default_rng(4)
    rows = pd.DataFrame(
        {"output_tokens_per_gpu": draw.integers(0, 9, 60), "p99_tpot_ms": draw.integers(0, 9, 60)}
    ).astype(float)
    for (x, y), on in zip(rows.to_numpy(), pareto(rows), strict=True):
        better = (rows.output_tokens_per_gpu >= x) & (rows.p99_tpot_ms <= y)
        same = (rows.output_tokens_per_gpu == x) & (rows.p99_tpot_ms == y)
        assert on == (better == same).all()


# Questions without an answer


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["chat", "--slo", "ttft_p99_ms=1"], "no setting keeps the SLO at any rate: at best, with"),
        (["chat", "--slo", "tfft_p99_ms=9"], "did you mean ttft_p99_ms"),
        (["chat"], "--slo says what to plan for"),
        (["chat", "--slo", SLO, "--gpu-hour-price", "0"], "give dollars above 0"),
        (["chat", "--slo", SLO, "--gpu-hour-price", "l4=1"], "l4=1: unknown; known: h100"),
        (["chat", "--slo", SLO, "--rate", "0"], "--rate must be above 0"),
        (["chat", "--slo", SLO, "--limit", "1"], "1 requests within 0 s have no rate"),
        (["chat", "--slo", SLO, "--vary", "max_num_seq=1"], "did you mean max_num_seqs"),
        (["chat", "--slo", SLO, "--vary", "max_num_seqs"], "write NAME=VALUE"),
        (["chat", "--slo", SLO, "--vary", "tp=7"], "no setting can run: "),
    ],
)
def test_no_answer_is_a_clear_answer(words: Sequence[str], message: str, tmp_path: Path) -> None:
    few = [] if "--limit" in words or "tp=7" in words else ["--limit", "40"]
    one = [] if "--vary" in words else ["--vary", "max_num_seqs=64"]
    done = planned(*words, *few, *one, folder=tmp_path / "none")
    said = done.output + str(done.exception)
    assert done.exit_code != 0
    assert message in said
    assert not (tmp_path / "none").exists()


def test_a_trace_shorter_than_a_request(tmp_path: Path) -> None:
    trace = lengthwise.load_trace("chat", limit=30)
    burst = replace(trace, arrival_s=trace.arrival_s / 1e3)
    asked = Asked(burst, candidates(RunConfig.of(slo=SLO), {"max_num_seqs": [64]}), jobs=1)
    with pytest.raises(
        PlanError, match=r"all its requests arrive within .* less than the .* s that"
    ):
        make_plan(asked, tmp_path)


def test_an_slo_that_holds_at_every_rate(tmp_path: Path) -> None:
    """Thirty requests at once stay within it: there is no highest rate, and that is said."""
    done = planned(
        "chat", "--limit", "30", "--slo", "ttft_p99_ms=1e7", "--vary", "max_num_seqs=64",
        folder=tmp_path / "all",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "the SLO holds at every rate that this trace can show" in done.output
    assert json.loads((tmp_path / "all" / "summary.json").read_text())["not_sustained_rate"] is None


def test_the_busiest_requests() -> None:
    trace = lengthwise.load_trace("chat", limit=300)
    part = busiest(trace, 40)
    spans = [float(trace.arrival_s[i + 39] - trace.arrival_s[i]) for i in range(261)]
    first = spans.index(min(spans))
    assert part.prompt_tokens.tolist() == trace.prompt_tokens[first : first + 40].tolist()
    assert part.arrival_s[0] == 0
    assert part.span_s == pytest.approx(min(spans))
    assert busiest(trace, 300) is trace


def test_prices() -> None:
    assert parse_prices("2.5", ["h100", "l40s"]) == {"h100": 2.5, "l40s": 2.5}
    assert parse_vary(["tp=1,2", "layout=packed"]) == {"tp": [1, 2], "layout": ["packed"]}


def test_a_plan_needs_a_trace_with_times() -> None:
    once = Trace(np.zeros(9), np.ones(9, np.int64), np.ones(9, np.int64))
    with pytest.raises(PlanError, match=r"9 requests within 0 s have no rate"):
        make_plan(Asked(once, []), Path("nowhere"))
