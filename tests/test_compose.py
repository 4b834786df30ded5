"""From names and flags to a planner: which points there are, and every refusal in its words."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lengthwise
from lengthwise.config import RunConfig
from lengthwise.prepare import Prepared, prepare
from policies.compose import (
    DEFAULT_BUDGET,
    NAMED,
    Point,
    PolicyChoiceError,
    Settings,
    budget,
    check,
    choose,
    compose,
)
from policies.continuous import Continuous
from policies.drain import Drain
from policies.grouping import Bucketing, Fcfs, TokenBudget
from policies.layout import PadToBucket, PadToLimit, PadToLongest
from serving.blocks import UNLIMITED
from serving.prefix import PrefixBlocks
from serving.queue import Buckets, Fifo, Ranked
from serving.recorder import Recorder
from serving.request import Request
from traces import Trace
from traces.trace import BlockHashes

SETTINGS = Settings(max_model_len=4096)


def planner(point: Point, **changes: Any) -> Any:
    return compose(point, replace(SETTINGS, **changes), Recorder())


# Points


@pytest.mark.parametrize("name", NAMED)
def test_the_six_are_points(name: str) -> None:
    assert choose(name) == NAMED[name]


@pytest.mark.parametrize(
    ("choice", "point"),
    [
        (("bucketing", "packed"), Point("bucketing", "packed", "drain")),
        (("bucketing", "bucket"), Point("bucketing", "bucket", "drain")),
        (("bucketing", None, "continuous"), Point("bucketing", "packed", "continuous")),
        (
            ("bucketing", "packed", "chunked-prefill"),
            Point("bucketing", "packed", "chunked-prefill"),
        ),
        (("chunked-prefill", None, "drain"), Point("fcfs", "packed", "drain")),
        (("chunked-prefill", "longest", "drain"), Point("fcfs", "longest", "drain")),
        (("static", "longest"), NAMED["dynamic-padding"]),
    ],
)  # fmt: skip
def test_layers_combine(choice: tuple[Any, ...], point: Point) -> None:
    assert choose(*choice) == point


@pytest.mark.parametrize(
    ("name", "grouping", "padding", "queue"),
    [
        ("static", Fcfs, PadToLimit, Fifo),
        ("dynamic-padding", Fcfs, PadToLongest, Fifo),
        ("bucketing", Bucketing, PadToLongest, Buckets),
        ("token-aware", TokenBudget, PadToLongest, Fifo),
    ],
)
def test_batches_that_drain(name: str, grouping: type, padding: type, queue: type) -> None:
    made = planner(choose(name))
    assert isinstance(made, Drain)
    assert isinstance(made.grouping, grouping)
    assert isinstance(made.padding, padding)
    assert isinstance(made.queue, queue)
    assert made.blocks.usable == UNLIMITED


def test_other_layouts() -> None:
    assert planner(choose("static", "packed")).padding is None
    assert isinstance(planner(choose("bucketing", "bucket")).padding, PadToBucket)


@pytest.mark.parametrize(("name", "chunks"), [("continuous", False), ("chunked-prefill", True)])
def test_lifecycles_that_plan_every_step(name: str, chunks: bool) -> None:
    made = planner(
        choose(name), order="priority", watermark=0.1, usable_blocks=99, async_scheduling=True
    )
    assert isinstance(made, Continuous)
    assert isinstance(made.queue, Ranked)
    limits = made.limits
    assert limits.chunked_prefill is chunks
    assert limits.priority
    assert limits.asynchronous
    assert made.watermark == 10
    assert made.blocks.usable == 99


def test_prefix_caching_takes_blocks_with_an_identity() -> None:
    made = planner(choose("chunked-prefill"), enable_prefix_caching=True)
    assert isinstance(made.blocks, PrefixBlocks)


@pytest.mark.parametrize(
    ("name", "given", "tokens"),
    [
        ("continuous", None, 4096),  # a whole prompt with its outputs
        ("continuous", 5000, 5000),
        ("chunked-prefill", None, DEFAULT_BUDGET),
        ("chunked-prefill", 100, 100),
        ("token-aware", None, DEFAULT_BUDGET),
        ("token-aware", 100, 100),
        ("static", None, None),
        ("bucketing", None, None),
    ],
)
def test_token_budgets(name: str, given: int | None, tokens: int | None) -> None:
    assert budget(choose(name), replace(SETTINGS, max_num_batched_tokens=given)) == tokens


class Grouping:
    """A user's own."""

    def form(self, queue: Any, room: Any, now: float) -> None:
        return None


def test_a_users_grouping_may_have_a_budget_of_its_own_or_none() -> None:
    point = choose(Grouping)
    assert point == Point(Grouping, "longest", "drain")
    assert budget(point, replace(SETTINGS, max_num_batched_tokens=7)) == 7
    assert budget(point, SETTINGS) is None
    assert isinstance(planner(point).grouping, Grouping)
    assert planner(choose(Grouping, None, "chunked-prefill")).limits.max_num_batched_tokens == 8192


def test_a_user_class_says_its_own_layout_and_lifecycle() -> None:
    class Chunky(Grouping):
        lifecycle = "chunked-prefill"

    class Packs(Grouping):
        layout = "packed"

    assert choose(Chunky) == Point(Chunky, "packed", "chunked-prefill")
    assert choose(Packs) == Point(Packs, "packed", "drain")
    assert choose(Packs, "limit").layout == "limit"


# Refusals


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (("sttic",), "--policy sttic: unknown; did you mean static? known: static, "
                     "dynamic-padding, bucketing, token-aware, continuous, chunked-prefill"),
        (("xyz",), "--policy xyz: unknown; known: static, "),
        (("static", "wide"), "--layout wide: unknown; known: limit, bucket, longest, packed"),
        (("static", "longes"), "--layout longes: unknown; did you mean longest?"),
        (("static", None, "drian"), "--lifecycle drian: unknown; did you mean drain?"),
        (("continuous", "longest"), "--layout longest: a continuous lifecycle re-plans every step "
                                    "and stores it packed; leave --layout out, or take --lifecycle "
                                    "drain"),
        (("static", "limit", "chunked-prefill"), "--layout limit: a chunked-prefill lifecycle "),
    ],
)  # fmt: skip
def test_choices_that_do_not_exist_or_go_together(choice: tuple[Any, ...], said: str) -> None:
    with pytest.raises(PolicyChoiceError, match="^" + re.escape(said)):
        choose(*choice)


CACHING = (
    "--enable-prefix-caching: a batch that drains holds its own rectangle of memory and shares "
    "nothing; take --lifecycle continuous or chunked-prefill"
)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("static", {"max_num_seqs": 0}, "--max-num-seqs must be at least 1, not 0"),
        ("static", {"max_model_len": 0}, "--max-model-len must be at least 1, not 0"),
        ("static", {"block_size": -1}, "--block-size must be at least 1, not -1"),
        ("token-aware", {"max_num_batched_tokens": 0},
         "--max-num-batched-tokens must be at least 1, not 0"),
        ("static", {"usable_blocks": 0}, "--num-gpu-blocks-override 1 leaves no usable KV block "
         "(one is the null block); give at least 2"),
        ("bucketing", {"bucket_bounds": (8, 8)}, "--bucket-bounds 8,8: give rising token counts"),
        ("bucketing", {"bucket_bounds": (0, 8)}, "--bucket-bounds 0,8: give rising token counts"),
        ("bucketing", {"bucket_bounds": ()}, "--bucket-bounds"),
        ("bucketing", {"max_wait": -0.001}, "--max-wait-ms must not be below 0, not -1.0"),
        ("static", {"order": "shorter"}, "--order shorter: unknown; did you mean shortest?"),
        ("continuous", {"watermark": 1.0}, "--watermark must be at least 0 and below 1, not 1.0"),
        ("continuous", {"watermark": -0.1}, "--watermark must be at least 0 and below 1"),
        ("static", {"enable_prefix_caching": True}, CACHING),
        ("continuous", {"max_num_batched_tokens": 4095},
         "--max-num-batched-tokens 4095 is below --max-model-len 4096: without chunked prefill a "
         "prompt with its outputs must fit one step; raise it, or take --lifecycle chunked-"),
        ("static", {"max_num_batched_tokens": 9},
         "--max-num-batched-tokens 9: a fcfs batch that drains has no token budget; leave it out, "
         "or take --policy token-aware"),
        ("bucketing", {"max_num_batched_tokens": 9},
         "--max-num-batched-tokens 9: a bucketing batch that drains has no token budget"),
    ],
)  # fmt: skip
def test_settings_that_no_policy_can_run_with(
    name: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(PolicyChoiceError, match="^" + re.escape(said)):
        planner(choose(name), **changes)


def test_settings_that_are_fine() -> None:
    for name in NAMED:
        check(choose(name), SETTINGS)
        planner(choose(name))


def test_without_chunks_a_request_over_the_budget_is_refused_at_arrival() -> None:
    """With flags it cannot be: the budget is then at least the model's limit."""
    made = planner(choose("continuous"))
    assert made.refusal(Request(0, 0.0, 4096, 1)) == (
        "prompt + output is 4097 tokens, over max_num_batched_tokens 4096, and prompts are not "
        "chunked"
    )
    assert made.refusal(Request(0, 0.0, 4095, 1)) is None


# What the flags leave open


def trace(longest: int = 40, hashed: bool = False) -> Trace:
    hashes = BlockHashes(np.array([1, 2, 1]), np.array([0, 2, 3]), 16) if hashed else None
    return Trace(np.zeros(2), np.array([longest - 10, 10]), np.array([10, 5]), None, hashes)


def ready(requests: Trace | None = None, **options: Any) -> Prepared:
    config = RunConfig.of(**{"cost": "fixed", "step_ms": 1.0, **options})
    return prepare(config, trace() if requests is None else requests)


@pytest.mark.parametrize(("longest", "limit"), [(16, 16), (17, 32), (64, 64), (65, 128)])
def test_the_limit_is_the_longest_request_rounded_up(longest: int, limit: int) -> None:
    made = ready(trace(longest))
    assert made.settings.max_model_len == limit
    assert f"max_model_len is {limit} (longest request: {longest} tokens)" in made.notes


def test_the_limit_is_at_most_the_models_own() -> None:
    made = prepare(RunConfig.of(model="llama-3.1-8b", hardware="h100"), trace(100_000))
    assert made.settings.max_model_len == 131_072
    made = prepare(RunConfig.of(model="qwen3-8b", hardware="h100"), trace(30_000))
    assert made.settings.max_model_len == 32_768


def test_who_sets_the_padding_of_static_is_said() -> None:
    notes = " ".join(ready(policy="static").notes)
    assert "prompts are padded to 64 tokens: request 0 (30 + 10) sets the limit" in notes


def test_memory_is_given_or_unlimited_under_a_fixed_cost() -> None:
    assert ready().settings.usable_blocks is None
    assert ready(num_gpu_blocks_override=11).settings.usable_blocks == 10
    assert ready(num_gpu_blocks_override=11).facts["kv_blocks"] == 10


def test_memory_comes_from_the_device_and_drains_share_it_with_activations() -> None:
    chunked = prepare(RunConfig.of(hardware="h100"), trace()).settings
    static = prepare(RunConfig.of(policy="static", hardware="h100"), trace()).settings
    assert chunked.activations is None
    assert static.activations is not None
    assert chunked.usable_blocks is not None
    assert static.usable_blocks is not None
    assert static.usable_blocks > chunked.usable_blocks > 10_000


def test_zero_is_a_choice() -> None:
    made = ready(policy="bucketing", max_wait_ms=0.0).settings
    assert made.max_wait == 0.0
    assert ready(policy="bucketing").settings.max_wait == 0.05


def test_chunks_off_is_the_continuous_lifecycle() -> None:
    assert ready(enable_chunked_prefill=False).point == NAMED["continuous"]
    assert ready(enable_chunked_prefill=True).point == NAMED["chunked-prefill"]
    assert ready(policy="bucketing", layout="packed").name == "bucketing+packed"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"enable_prefix_caching": True}, "--enable-prefix-caching: trace has no block hashes; "
         "prefixes are unknown"),
        ({"block_size": 0}, "--block-size must be at least 1, not 0"),
        ({"bucket_bounds": (5,)}, "--bucket-bounds (5,): chunked-prefill does not use it"),
        ({"max_wait_ms": 3.0}, "--max-wait-ms 3.0: chunked-prefill does not use it"),
        ({"policy": "static", "long_prefill_token_threshold": 5},
         "--long-prefill-token-threshold 5: static (drain) does not use it"),
        ({"policy": "static", "watermark": 0.1}, "--watermark 0.1: static (drain) does not use it"),
        ({"cost": "roofline", "step_ms": 5.0}, "--step-ms 5.0: only --cost fixed uses it"),
        ({"cost": "roofline", "step_ms": None, "max_model_len": 10**6},
         "--max-model-len 1000000 is over the 131072 positions of the model"),
        ({"max_num_seqs": "many"}, "--max-num-seqs many: "),
        ({"colour": "red"}, "--colour: there is no such option"),
        ({"like": "vllmm"}, "--like vllmm: unknown; did you mean vllm?"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyChoiceError, match="^" + re.escape(said)):
        ready(**options)


def test_an_empty_trace_is_refused() -> None:
    nothing = np.zeros(0, np.int64)
    with pytest.raises(PolicyChoiceError, match=r"^trace: the trace has no requests"):
        ready(Trace(np.zeros(0), nothing, nothing))


def test_an_engines_prefix_caching_is_off_without_hashes_and_that_is_said() -> None:
    made = ready(like="vllm")
    assert not made.settings.enable_prefix_caching
    assert "prefix caching is off: trace has no block hashes" in made.notes
    assert ready(trace(hashed=True), like="vllm").settings.enable_prefix_caching


def test_refused_requests_are_counted_and_listed_with_their_reason() -> None:
    record = lengthwise.replay(
        trace(), "chunked-prefill", cost="fixed", step_ms=1.0, max_model_len=20
    )
    assert record.summary["refused"] == 1
    row = record.requests.iloc[0]
    assert row.status == "refused"
    assert row.reason == "prompt + output is 40 tokens, over max_model_len 20"
    assert record.requests.iloc[1].status == "finished"


@pytest.mark.parametrize("run", [lengthwise.replay, lengthwise.compare])
def test_options_of_reading_a_file_are_refused_beside_a_trace(run: Any) -> None:
    trace = lengthwise.load_trace("chat", limit=5)
    with pytest.raises(PolicyChoiceError, match=r"rate_scale=2.0: this trace is read already"):
        run(trace, rate_scale=2)
    run(trace, rate_scale=1.0)
