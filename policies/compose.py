"""The named policies as points in the space of three layers, and how a point becomes a planner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from policies.admission import Limits
from policies.continuous import Continuous
from policies.drain import Activations, Drain
from policies.grouping import Bucketing, Fcfs, Grouping, TokenBudget
from policies.layout import Padding, PadToBucket, PadToLimit, PadToLongest
from policies.names import nearest
from policies.sglang import Sglang, SglangLimits
from policies.sglang.limits import default_max_running_requests
from serving.blocks import UNLIMITED, Blocks
from serving.core import Planner
from serving.prefix import PrefixBlocks
from serving.queue import ORDERS, Buckets, Queue, Ranked
from serving.recorder import Recorder

LAYOUTS = ("limit", "bucket", "longest", "packed")
"""Pad to the model's limit, to the bucket's bound, to the batch's longest prompt; or pack."""

LIFECYCLES = ("drain", "continuous", "chunked-prefill")


class PolicyChoiceError(ValueError):
    """A policy that does not exist, or settings that make no sense together."""


@dataclass(frozen=True)
class Point:
    """One choice on each layer."""

    grouping: str | type
    layout: str
    lifecycle: str


NAMED: dict[str, Point] = {
    "static": Point("fcfs", "limit", "drain"),
    "dynamic-padding": Point("fcfs", "longest", "drain"),
    "bucketing": Point("bucketing", "longest", "drain"),
    "token-aware": Point("token-budget", "longest", "drain"),
    "continuous": Point("fcfs", "packed", "continuous"),
    "chunked-prefill": Point("fcfs", "packed", "chunked-prefill"),
}
"""The six policies, in the order in which `compare` shows them."""

KNOWN: dict[str, Point] = {**NAMED, "sglang": Point("fcfs", "packed", "sglang")}
"""Every policy that has a name; SGLang's lifecycle combines with no other layer."""

DEFAULT_BUDGET = 8192
"""`max_num_batched_tokens` where a policy has a budget that nothing else sets."""


@dataclass(frozen=True)
class Settings:
    """What a policy is built with; a name is that of the flag, in seconds where it is a time."""

    max_model_len: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    bucket_bounds: tuple[int, ...] = (1024, 2048, 4096, 8192)
    max_wait: float = 0.05
    order: str = "fcfs"
    block_size: int = 16
    usable_blocks: int | None = None
    activations: Activations | None = None
    enable_prefix_caching: bool = False
    blocks_per_hash: int = 1
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    async_scheduling: bool = False
    # of SGLang's lifecycle only
    enable_chunked_prefill: bool = True
    max_prefill_tokens: int = SglangLimits.max_prefill_tokens
    schedule_conservativeness: float = SglangLimits.schedule_conservativeness
    enable_mixed_chunk: bool = False
    ignore_eos: bool = False
    hash_tokens: int = 1  # tokens that one of a request's hashes covers
    highest_first: bool = False  # by priority, larger values go first


def choose(policy: str | type, layout: str | None = None, lifecycle: str | None = None) -> Point:
    """The point that a name, or a user's class, and the overrides stand for.

    Raises:
        PolicyChoiceError: an unknown name, or layers that do not go together.
    """
    point = _point(policy)
    for value, known, flag in ((layout, LAYOUTS, "layout"), (lifecycle, LIFECYCLES, "lifecycle")):
        if value is not None and value not in known:
            raise PolicyChoiceError(f"--{flag} {value}: {nearest(value, known)}")
    if lifecycle is not None:
        if point.lifecycle == "sglang":
            raise PolicyChoiceError(
                f"--lifecycle {lifecycle}: sglang is a lifecycle of its own; leave --lifecycle out"
            )
        point = replace(point, lifecycle=lifecycle)
    continuous = point.lifecycle != "drain"
    if continuous and layout not in (None, "packed"):
        raise PolicyChoiceError(
            f"--layout {layout}: a {point.lifecycle} lifecycle re-plans every step and stores it "
            "packed; leave --layout out, or take --lifecycle drain"
        )
    if continuous:
        return replace(point, layout="packed")
    return point if layout is None else replace(point, layout=layout)


def _point(policy: str | type) -> Point:
    if isinstance(policy, str):
        if policy not in KNOWN:
            raise PolicyChoiceError(f"--policy {policy}: {nearest(policy, KNOWN)}")
        return KNOWN[policy]
    return Point(
        policy, getattr(policy, "layout", "longest"), getattr(policy, "lifecycle", "drain")
    )


def budget(point: Point, settings: Settings) -> int | None:
    """The token budget that a step of this policy has, or None.

    Raises:
        PolicyChoiceError: a budget for a policy that has none, or one too small for it.
    """
    given = settings.max_num_batched_tokens
    if point.lifecycle == "continuous":
        most = settings.max_model_len
        if given is not None and given < most:
            raise PolicyChoiceError(
                f"--max-num-batched-tokens {given} is below --max-model-len {most}: without "
                "chunked prefill a prompt with its outputs must fit one step; raise it, or take "
                "--lifecycle chunked-prefill"
            )
        return most if given is None else given
    if point.lifecycle == "sglang" and not settings.enable_chunked_prefill:
        return max(settings.max_prefill_tokens, settings.max_model_len)  # the first may exceed it
    if point.lifecycle in ("chunked-prefill", "sglang") or point.grouping == "token-budget":
        return DEFAULT_BUDGET if given is None else given
    if given is not None and isinstance(point.grouping, str):
        raise PolicyChoiceError(
            f"--max-num-batched-tokens {given}: a {point.grouping} batch that drains has no token "
            "budget; leave it out, or take --policy token-aware"
        )
    return given


def check(point: Point, settings: Settings) -> None:
    """Settings that no policy can run with.

    Raises:
        PolicyChoiceError: names the flag, what was found and what to do.
    """
    for flag, value in (
        ("max-num-seqs", settings.max_num_seqs),
        ("max-model-len", settings.max_model_len),
        ("max-num-batched-tokens", settings.max_num_batched_tokens),
        ("block-size", settings.block_size),
        ("max-prefill-tokens", settings.max_prefill_tokens),
    ):
        if value is not None and value < 1:
            raise PolicyChoiceError(f"--{flag} must be at least 1, not {value}")
    if settings.usable_blocks is not None and settings.usable_blocks < 1:
        raise PolicyChoiceError(
            f"--num-gpu-blocks-override {settings.usable_blocks + 1} leaves no usable KV block "
            "(one is the null block); give at least 2"
        )
    bounds = settings.bucket_bounds
    if not bounds or bounds[0] < 1 or list(bounds) != sorted(set(bounds)):
        shown = ",".join(str(b) for b in bounds)
        raise PolicyChoiceError(f"--bucket-bounds {shown}: give rising token counts, 1 or more")
    if settings.max_wait < 0:
        raise PolicyChoiceError(f"--max-wait-ms must not be below 0, not {settings.max_wait * 1e3}")
    if settings.order not in ORDERS:
        raise PolicyChoiceError(f"--order {settings.order}: {nearest(settings.order, ORDERS)}")
    if not 0 <= settings.watermark < 1:
        raise PolicyChoiceError(
            f"--watermark must be at least 0 and below 1, not {settings.watermark}"
        )
    if settings.enable_prefix_caching and point.lifecycle == "drain":
        raise PolicyChoiceError(
            "--enable-prefix-caching: a batch that drains holds its own rectangle of memory and "
            "shares nothing; take --lifecycle continuous or chunked-prefill"
        )
    if not settings.schedule_conservativeness >= 0:
        raise PolicyChoiceError(
            "--schedule-conservativeness must not be below 0, not "
            f"{settings.schedule_conservativeness}"
        )
    if settings.async_scheduling and point.lifecycle == "sglang":
        raise PolicyChoiceError(
            "--async-scheduling: SGLang's overlap of scheduling and model is not modelled; leave "
            "it out"
        )


def compose(point: Point, settings: Settings, recorder: Recorder) -> Planner:
    """The planner of a point.

    Raises:
        PolicyChoiceError: settings that do not go with the point.
    """
    check(point, settings)
    if point.lifecycle == "sglang":
        return _sglang(point, settings, recorder)
    tokens = budget(point, settings)
    blocks = Blocks(settings.usable_blocks, settings.block_size)
    if settings.enable_prefix_caching:
        per_hash = settings.blocks_per_hash
        blocks = PrefixBlocks(settings.usable_blocks, settings.block_size, per_hash)
    if not isinstance(point.grouping, str) and hasattr(point.grouping, "plan"):
        queue = ORDERS[settings.order]()
        planner: Planner = _construct(point.grouping, settings, blocks, queue, recorder)
        return planner
    grouping, queue = _grouping(point, replace(settings, max_num_batched_tokens=tokens))
    if point.lifecycle == "drain":
        return Drain(
            settings.max_num_seqs,
            _padding(point, settings),
            blocks,
            queue,
            recorder,
            grouping,
            settings.activations,
        )
    if tokens is None:
        raise PolicyChoiceError(f"a {point.lifecycle} lifecycle needs --max-num-batched-tokens")
    limits = Limits(
        max_num_batched_tokens=tokens,
        max_num_seqs=settings.max_num_seqs,
        chunked_prefill=point.lifecycle == "chunked-prefill",
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        watermark=settings.watermark,
        priority=settings.order == "priority",
        asynchronous=settings.async_scheduling,
    )
    return Continuous(limits, blocks, queue, recorder, grouping)


def _sglang(point: Point, settings: Settings, recorder: Recorder) -> Sglang:
    size, blocks = settings.block_size, settings.usable_blocks
    pool = UNLIMITED if blocks is None else blocks * size
    chunk = budget(point, settings) if settings.enable_chunked_prefill else None
    limits = SglangLimits(
        max_total_tokens=pool,
        context_len=settings.max_model_len,
        max_running_requests=default_max_running_requests(
            pool, settings.max_model_len, settings.max_num_seqs
        ),
        chunked_prefill_size=chunk or -1,
        max_prefill_tokens=settings.max_prefill_tokens,
        enable_mixed_chunk=settings.enable_mixed_chunk,
        schedule_conservativeness=settings.schedule_conservativeness,
        page_size=size,
        disable_radix_cache=not settings.enable_prefix_caching,
        ignore_eos=settings.ignore_eos,
    )
    queue = ORDERS[settings.order]()
    if settings.order == "priority" and settings.highest_first:
        queue = Ranked(lambda r: -r.priority)
    return Sglang(limits, recorder, queue, settings.hash_tokens)


def _grouping(point: Point, settings: Settings) -> tuple[Grouping, Queue]:
    make: Callable[[], Queue] = ORDERS[settings.order]
    if point.grouping == "bucketing":
        bounds = settings.bucket_bounds
        return Bucketing(bounds, settings.max_wait), Buckets(bounds, make)
    if point.grouping == "token-budget":
        return TokenBudget(settings.max_num_batched_tokens or DEFAULT_BUDGET), make()
    if point.grouping == "fcfs":
        return Fcfs(), make()
    return _construct(point.grouping, settings), make()


def _padding(point: Point, settings: Settings) -> Padding | None:
    if point.layout == "limit":
        return PadToLimit(settings.max_model_len)
    if point.layout == "bucket":
        return PadToBucket(settings.bucket_bounds)
    return PadToLongest() if point.layout == "longest" else None


def _construct(cls: Any, settings: Settings, *parts: Any) -> Any:
    """A user's class: called with the settings if it takes them, else with nothing."""
    from inspect import signature

    takes = len(signature(cls).parameters)
    return cls(*(settings, *parts)[:takes])
