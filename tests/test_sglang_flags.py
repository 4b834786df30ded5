"""The policy `sglang` from the command line's flags: SGLang's spelling, defaults, and refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import lengthwise
from lengthwise.api import run
from lengthwise.config import RunConfig
from lengthwise.engines import GIB, SGLANG, SGLANG_VERSION
from lengthwise.on_model import execute
from lengthwise.prepare import Prepared, prepare
from lengthwise.unused import compared
from policies.compose import PolicyChoiceError, compose
from policies.sglang import Sglang, SglangLimits
from serving.record import Record
from serving.recorder import Recorder
from tests.shared import ROOT
from traces import Trace
from traces.trace import BlockHashes

FIXED: dict[str, Any] = {"cost": "fixed", "step_ms": 10.0}


def trace(count: int = 6, prompt: int = 30, output: int = 10) -> Trace:
    return Trace(np.arange(count) * 0.01, np.full(count, prompt), np.full(count, output))


def ready(requests: Trace | None = None, **options: Any) -> Prepared:
    return prepare(RunConfig.of(**{"policy": "sglang", **FIXED, **options}), requests or trace())


def limits(requests: Trace | None = None, **options: Any) -> SglangLimits:
    made = ready(requests, **options)
    planner = compose(made.point, made.settings, Recorder())
    assert isinstance(planner, Sglang)
    return planner.limits


# The table


def test_the_page_has_every_flag() -> None:
    page = (ROOT / "docs" / "engines.md").read_text()
    assert SGLANG_VERSION in page
    for flag in SGLANG:
        assert f"| `{flag.engine_flag}` | `--{flag.knob.replace('_', '-')}` |" in page


# Flags, each in what it does


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"chunked_prefill_size": 512}, "chunked_prefill_size", 512),
        ({"max_num_batched_tokens": 512}, "chunked_prefill_size", 512),
        ({"chunked_prefill_size": -1}, "chunked_prefill_size", -1),
        ({"enable_chunked_prefill": False}, "chunked_prefill_size", -1),
        ({"max_prefill_tokens": 700}, "max_prefill_tokens", 700),
        ({"max_running_requests": 9}, "max_running_requests", 9),
        ({"max_num_seqs": 9}, "max_running_requests", 9),
        ({"max_num_seqs": 9, "max_total_tokens": 16}, "max_running_requests", 8),
        ({"schedule_conservativeness": 0.3}, "schedule_conservativeness", 0.3),
        ({"page_size": 4}, "page_size", 4),
        ({"block_size": 4}, "page_size", 4),
        ({"enable_mixed_chunk": True}, "enable_mixed_chunk", True),
        ({"disable_radix_cache": True}, "disable_radix_cache", True),
        ({"max_total_tokens": 1000}, "max_total_tokens", 992),  # whole pages of 16
        ({"max_total_tokens": 1000, "page_size": 1}, "max_total_tokens", 1000),
        ({"max_total_tokens": 1000, "like": "sglang"}, "max_total_tokens", 1000),
        ({"num_gpu_blocks_override": 11}, "max_total_tokens", 160),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"max_model_len": 100}, "context_len", 100),
    ],
)
def test_a_flag_reaches_the_planner(options: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(limits(**options), field) == value
    assert getattr(limits(), field) != value or field == "disable_radix_cache"


def test_without_like_it_stands_on_the_same_footing_as_the_six() -> None:
    ours, theirs = ready(), ready(policy="chunked-prefill")
    same = ("max_num_seqs", "max_num_batched_tokens", "block_size", "enable_prefix_caching")
    for name in same:
        assert ours.facts.get(name) == theirs.facts.get(name), name
    hashed = replace(trace(), hashes=BlockHashes(np.zeros(6, np.int64), np.arange(7), 30))
    assert limits(hashed).disable_radix_cache
    assert not limits(hashed, disable_radix_cache=False).disable_radix_cache


def test_sglangs_own_defaults() -> None:
    made = prepare(RunConfig.of(like="sglang", hardware="h100", model="llama-3.1-8b"), trace())
    assert made.name == "sglang"
    assert made.config.mem_fraction_static == 0.828
    settings = made.settings
    assert (settings.block_size, settings.max_num_batched_tokens) == (1, 8192)
    assert (settings.max_model_len, settings.max_num_seqs) == (131_072, 2048)
    assert settings.enable_prefix_caching
    weights, memory = 8_030_261_248 * 2, 79.15 * GIB
    expected = ((memory - GIB / 2) * 0.828 - weights) / (2 * 32 * 8 * 128 * 2)
    assert settings.usable_blocks == pytest.approx(expected, rel=1e-3)
    small = prepare(RunConfig.of(like="sglang", hardware="l4", model="qwen2.5-7b"), trace())
    assert small.settings.max_num_batched_tokens == 4096
    assert small.config.mem_fraction_static == 0.679


def test_a_share_of_the_memory_bounds_the_pool() -> None:
    def blocks(**options: Any) -> int:
        made = prepare(RunConfig.of(policy="sglang", **options), trace()).settings.usable_blocks
        assert made is not None
        return made

    assert blocks(mem_fraction_static=0.5) < blocks(mem_fraction_static=0.9)
    assert blocks(gpu_memory_utilization=0.5) < blocks()


def test_a_record_gives_back_what_made_it() -> None:
    options: dict[str, Any] = {"like": "sglang", "chunked_prefill_size": -1, "page_size": 4}
    first = lengthwise.replay("chat", limit=30, **options)
    chat = lengthwise.load_trace("chat", limit=30)
    again = run(prepare(RunConfig.of(**first.config["run"]), chat), chat)
    assert again.summary == first.summary


# What each policy is given in a comparison


def test_own_gives_each_policy_its_engines_defaults() -> None:
    made = lengthwise.compare(
        "chat", ["chunked-prefill", "continuous", "sglang"], limit=20, like="own",
        schedule_conservativeness=0.5, watermark=0.01,
    )  # fmt: skip
    vllm, whole, sglang = (made[name].config for name in made)
    assert (vllm["max_num_seqs"], sglang["max_num_seqs"]) == (1024, 2048)
    assert vllm["run"]["async_scheduling"]
    assert "async_scheduling" not in sglang["run"]
    assert whole["max_num_batched_tokens"] == 131_072
    assert sglang["run"]["schedule_conservativeness"] == 0.5
    assert "watermark" not in sglang["run"]
    assert vllm["run"]["watermark"] == 0.01
    assert all(record.summary["completed"] == 20 for record in made.values())


def test_the_six_can_all_be_run_like_vllm() -> None:
    made = lengthwise.compare("chat", limit=20, like="vllm")
    assert len(made) == 6
    assert all(record.summary["completed"] == 20 for record in made.values())


def test_an_option_that_no_policy_of_a_comparison_knows_is_refused() -> None:
    said = "--page-size 4: none of static, continuous has a use for it"
    with pytest.raises(PolicyChoiceError, match=said):
        compared(["static", "continuous"], {"page_size": 4})
    assert compared(["static", "sglang"], {"page_size": 4})["static"].page_size is None


# Refusals


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schedule_policy": "lpm"}, "--schedule-policy lpm: only fcfs is modelled; for priorities "
         "take --order priority"),
        ({"max_num_seqs": 5, "max_running_requests": 6}, "--max-running-requests 6: --max-num-seqs "
         "says the same; give one of the two"),
        ({"chunked_prefill_size": 0}, "--chunked-prefill-size 0: give at least 1"),
        ({"max_total_tokens": 7}, "--max-total-tokens 7: not even one page of 16 tokens"),
        ({"async_scheduling": True}, "--async-scheduling: SGLang's overlap of scheduling and model "
         "is not modelled; leave it out"),
        ({"watermark": 0.1}, "--watermark 0.1: sglang does not use it"),
        ({"max_wait_ms": 3.0}, "--max-wait-ms 3.0: sglang does not use it"),
        ({"lifecycle": "drain"}, "--lifecycle drain: sglang is a lifecycle of its own; leave "),
        ({"layout": "longest"}, "--layout longest: a sglang lifecycle re-plans every step"),
        ({"schedule_conservativeness": -1.0}, "--schedule-conservativeness must not be below 0"),
        ({"max_prefill_tokens": 0}, "--max-prefill-tokens must be at least 1, not 0"),
        ({"disable_radix_cache": False}, "--enable-prefix-caching: trace has no block hashes"),
        ({"like": "vllm"}, "--like vllm: sglang does not decide as that engine does; take --policy "
         "chunked-prefill, or --like own"),
        ({"policy": "continuous", "like": "sglang"}, "--like sglang: continuous does not decide as "
         "that engine does; take --policy sglang"),
        ({"policy": "static", "like": "own"}, "--like own: static is the scheduler of no engine"),
        ({"policy": "continuous", "page_size": 1}, "--page-size 1: continuous does not use it; it "
         "is --policy sglang's --block-size"),
        ({"policy": "static", "enable_mixed_chunk": True}, "--enable-mixed-chunk: static (drain) "
         "does not use it; it is --policy sglang's"),
        ({"policy": "chunked-prefill", "disable_radix_cache": False}, "--disable-radix-cache False:"
         " chunked-prefill does not use it"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyChoiceError, match="^" + re.escape(said)):
        ready(**options)


def test_memory_is_divided_in_one_way() -> None:
    config = RunConfig.of(policy="sglang", mem_fraction_static=0.8, gpu_memory_utilization=0.9)
    with pytest.raises(PolicyChoiceError, match=r"^--mem-fraction-static 0.8: --gpu-memory"):
        prepare(config, trace())
    with pytest.raises(
        ValueError, match=r"weights take 15.0 GiB, --mem-fraction-static 0.1 leaves"
    ):
        prepare(RunConfig.of(policy="sglang", mem_fraction_static=0.1), trace())


def test_the_radix_cache_is_not_executed() -> None:
    hashed = replace(trace(), hashes=BlockHashes(np.zeros(6, np.int64), np.arange(7), 30))
    with pytest.raises(PolicyChoiceError, match="--enable-prefix-caching: the radix cache is sim"):
        execute(hashed, "sglang", disable_radix_cache=False)


# What SGLang aborts


def test_what_sglang_aborts_or_cuts_is_refused_with_a_reason(tmp_path: Path) -> None:
    prompts, outputs = np.array([10, 40, 94, 10, 10]), np.array([5, 60, 1, 89, 88])
    requests = Trace(np.zeros(5), prompts, outputs)
    record = lengthwise.replay(
        requests, "sglang", max_model_len=100, max_total_tokens=100, page_size=1, **FIXED
    )
    record.save(tmp_path / "run")
    table = Record.load(tmp_path / "run").requests
    assert table.status.tolist() == ["finished", *["refused"] * 3, "finished"]
    assert table.reason[1].startswith("prompt + output is 100 tokens; SGLang makes at most 58 out")
    assert table.reason[2].startswith("the prompt is 94 tokens; SGLang aborts one of 94 or more")
    assert table.reason[3].startswith("prompt + output is 99 tokens; SGLang makes at most 88")
    assert record.summary["completed"] + record.summary["refused"] == 5


def test_the_limit_that_follows_from_the_trace_refuses_nobody() -> None:
    for longest in (57, 58, 63, 64):
        record = lengthwise.replay(trace(3, longest - 1, 1), "sglang", **FIXED)
        assert record.summary["refused"] == 0


# Hashes, priorities, jumps


def test_the_radix_cache_goes_by_the_traces_own_hashes() -> None:
    """A hash of 24 tokens is no whole number of pages of 16, and a head may end inside one."""
    ids = np.array([1, 2, 3, 1, 2, 4, 1, 5])
    hashes = BlockHashes(ids, np.array([0, 3, 6, 8]), 24)
    requests = Trace(
        np.array([0.0, 5.0, 10.0]), np.array([60, 60, 40]), np.full(3, 4), None, hashes
    )

    def hits(**options: Any) -> list[int]:
        record = lengthwise.replay(
            requests, "sglang", disable_radix_cache=False, **FIXED, **options
        )
        return admitted(record).tokens.tolist()

    assert hits(page_size=1) == [0, 48, 24]
    assert hits() == [0, 48, 16]
    assert lengthwise.replay(requests, "sglang", **FIXED).summary["prefix_hit_rate"] is None


def admitted(record: Record) -> pd.DataFrame:
    return record.events[record.events.kind == "admit"]


@pytest.mark.parametrize(("like", "order"), [(None, [0, 2, 1]), ("sglang", [0, 1, 2])])
def test_sglang_turns_priorities_round(like: str | None, order: list[int]) -> None:
    requests = replace(
        trace(3), arrival_s=np.array([0.0, 0.001, 0.002]), priority=np.array([5, 9, 1])
    )
    record = lengthwise.replay(
        requests, "sglang", order="priority", like=like, max_running_requests=1, **FIXED
    )
    assert admitted(record).request.tolist() == order


@pytest.mark.parametrize(
    "options",
    [
        {"like": "sglang"},
        {"max_total_tokens": 30_000, "schedule_conservativeness": 0.05, "rate_scale": 8.0},
        {"like": "sglang", "enable_mixed_chunk": True, "rate_scale": 8.0},
        {"disable_radix_cache": True, "ignore_eos": True, "max_total_tokens": 30_000},
    ],
)
def test_jumping_changes_nothing(options: dict[str, Any]) -> None:
    jumped, stepped = (
        lengthwise.replay("chat", "sglang", limit=150, jump=jump, **options)
        for jump in (True, False)
    )
    pd.testing.assert_frame_equal(jumped.steps, stepped.steps)
    pd.testing.assert_frame_equal(jumped.requests, stepped.requests)
    pd.testing.assert_frame_equal(jumped.events, stepped.events)


def test_replicas_of_sglang_are_not_mixed_with_others_where_prefixes_are_cached() -> None:
    hashed = replace(trace(), hashes=BlockHashes(np.zeros(6, np.int64), np.arange(7), 30))
    groups = [{"policy": "sglang"}, {"policy": "chunked-prefill"}]
    with pytest.raises(PolicyChoiceError, match="sglang's radix cache matches tokens and the oth"):
        lengthwise.replay(hashed, groups=groups, enable_prefix_caching=True, **FIXED)
    assert lengthwise.replay(hashed, groups=groups, **FIXED).summary["completed"] == 6
    both = lengthwise.replay(hashed, "sglang", replicas=2, enable_prefix_caching=True, **FIXED)
    assert both.summary["prefix_hit_rate"] == pytest.approx(4 * 16 / 180)
