"""From what was asked for to what runs: the policy's settings, its memory, the cost of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lengthwise.config import RunConfig
from lengthwise.engines import engine_of, vllm_defaults
from lengthwise.sglang_flags import respell, sglang_defaults
from lengthwise.unused import refuse_unused, unfit
from policies.compose import Point, PolicyChoiceError, Settings, budget, check, choose
from policies.drain import Activations
from policies.load import load_policy
from policies.sglang.limits import SPARE_TOKENS, default_max_running_requests
from serving.blocks import UNLIMITED
from serving.request import Request
from sim.cost import CostModel
from sim.fitted import FittedCost, own_version
from sim.hardware import Hardware, hardware_called, load_hardware
from sim.load import load_cost
from sim.memory import kv_capacity, static_pool
from sim.models import Model, load_model
from traces import Trace

T = TypeVar("T")

DEFAULT_MODEL = "llama-3.1-8b"
DEFAULT_HARDWARE = "h100"


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start, and what a reader of its record should know."""

    config: RunConfig
    name: str  # the policy as shown
    point: Point
    settings: Settings
    cost: CostModel
    facts: dict[str, Any]  # derived figures that go into config.json
    notes: tuple[str, ...]
    members: tuple[Prepared, ...] = ()  # the replicas, where there are several

    @property
    def room(self) -> tuple[int, int | None]:
        """Seats and usable KV blocks of all replicas; None where memory plays no part."""
        settings = [member.settings for member in self.members or (self,)]
        blocks = [s.usable_blocks for s in settings if s.usable_blocks is not None]
        seats = sum(s.max_num_seqs for s in settings)
        return seats, sum(blocks) if len(blocks) == len(settings) else None


def prepare(config: RunConfig, trace: Trace) -> Prepared:
    """Work out everything that the flags leave open.

    Raises:
        ValueError: the user's mistake, with the flag, what was found and what to do.
    """
    if not len(trace):
        raise PolicyChoiceError(f"{trace.name}: the trace has no requests")
    fixed = config.cost == "fixed"
    model, hardware = (None, None) if fixed else _machine(config)
    point, name = _policy(config)
    refuse_unused(config, point)
    config = respell(config)
    engine = engine_of(config.like, name, point)
    if engine is not None:
        defaults = _engine_defaults(engine, config, hardware)
        config = config.with_defaults({k: v for k, v in defaults.items() if k not in unfit(point)})
    limit, notes = _max_model_len(config, trace, model, point)
    caching, said = _caching(config, trace, engine)
    notes += said
    size = _given(config.block_size, Settings.block_size)
    if size < 1:
        raise PolicyChoiceError(f"--block-size must be at least 1, not {size}")
    settings = Settings(
        max_model_len=limit,
        max_num_seqs=_given(config.max_num_seqs, Settings.max_num_seqs),
        max_num_batched_tokens=_own_budget(config, point, limit),
        bucket_bounds=_given(config.bucket_bounds, Settings.bucket_bounds),
        max_wait=_given(config.max_wait_ms, Settings.max_wait * 1e3) / 1e3,
        order=_given(config.order, Settings.order),
        block_size=size,
        enable_prefix_caching=caching,
        blocks_per_hash=blocks_per_hash(trace, size),
        long_prefill_token_threshold=_given(config.long_prefill_token_threshold, 0),
        watermark=_given(config.watermark, 0.0),
        async_scheduling=bool(config.async_scheduling),
        enable_chunked_prefill=config.enable_chunked_prefill is not False,
        max_prefill_tokens=_given(config.max_prefill_tokens, Settings.max_prefill_tokens),
        schedule_conservativeness=_given(
            config.schedule_conservativeness, Settings.schedule_conservativeness
        ),
        enable_mixed_chunk=bool(config.enable_mixed_chunk),
        ignore_eos=bool(config.ignore_eos),
        hash_tokens=1 if trace.hashes is None else trace.hashes.block_tokens,
        highest_first=engine == "sglang",
    )
    cost = load_cost(
        config.cost or "roofline",
        step_s=None if config.step_ms is None else config.step_ms / 1e3,
        model=None if model is None else config.model or DEFAULT_MODEL,
        hardware=None if hardware is None else config.hardware or DEFAULT_HARDWARE,
        tp=config.tp or 1,
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        overhead_layer_s=_times(config.overhead_us_per_layer, 1e-6),
        allreduce_bytes_per_s=_times(config.allreduce_gbps, 1e9),
        allreduce_s=_times(config.allreduce_us, 1e-6),
    )
    if isinstance(cost, FittedCost):
        wanted = {"tp": config.tp or 1, "dtype": config.dtype, "lengthwise": own_version()}
        made = cost.calibration.provenance.hardware
        if config.hardware is not None and made is not None:
            same = hardware_called(made) in (None, load_hardware(config.hardware).name)
            wanted["hardware"] = None if same else config.hardware
        if model is not None and config.model is not None:
            wanted["model"] = model.name
        notes += cost.differences(**wanted)
        if cost.overhead_layer_s and model is not None and not cost.calibration.provenance.layers:
            notes.append(
                f"the cost file names no model: the overhead is that of {model.name}'s "
                f"{model.layers} layers"
            )
    settings, facts = _memory(config, settings, point, model, hardware)
    if point.lifecycle == "sglang":
        settings = _seats(config, settings)
    check(point, settings)
    if point.layout == "limit":
        longest = int(np.argmax(trace.prompt_tokens + trace.output_tokens))
        notes.append(
            f"prompts are padded to {limit} tokens: request {longest} "
            f"({trace.prompt_tokens[longest]} + {trace.output_tokens[longest]}) sets the limit"
        )
    facts |= {
        "policy": name,
        "model": None if model is None else model.name,
        "hardware": None if hardware is None else hardware.name,
        "max_model_len": limit,
        "max_num_batched_tokens": budget(point, settings),
        "max_num_seqs": settings.max_num_seqs,
        "layout": point.layout,
        "lifecycle": point.lifecycle,
        "enable_prefix_caching": caching and trace.hashes is not None,
        "peak_flops": getattr(cost, "peak_flops", None),
        "peak_bytes_per_s": getattr(cost, "peak_bytes_per_s", None),
    }
    return Prepared(config, name, point, settings, cost, facts, (*trace.notes, *notes))


def _engine_defaults(engine: str, config: RunConfig, hardware: Hardware | None) -> dict[str, Any]:
    """The knobs as the engine would set them on this GPU."""
    memory = None if hardware is None else hardware.memory_bytes
    if engine == "sglang":
        return sglang_defaults(config, memory)
    return vllm_defaults(memory, "" if hardware is None else hardware.name)


def _caching(config: RunConfig, trace: Trace, engine: str | None) -> tuple[bool, list[str]]:
    """Whether prefixes are cached, and what is to be said of it."""
    if not config.enable_prefix_caching or trace.hashes is not None:
        return bool(config.enable_prefix_caching), []
    if engine is None:
        raise PolicyChoiceError(
            f"--enable-prefix-caching: {trace.name} has no block hashes; prefixes are unknown"
        )
    if engine == "sglang":  # a retracted request may find what it has computed itself
        return True, [f"no prompt is taken to share tokens: {trace.name} has no block hashes"]
    return False, [f"prefix caching is off: {trace.name} has no block hashes"]


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _machine(config: RunConfig) -> tuple[Model, Hardware]:
    model = load_model(config.model or DEFAULT_MODEL)
    return model, load_hardware(config.hardware or DEFAULT_HARDWARE)


def _policy(config: RunConfig) -> tuple[Point, str]:
    """The point that policy, layers and `--no-enable-chunked-prefill` stand for, and its name."""
    lifecycle = config.lifecycle
    if config.enable_chunked_prefill is False and config.policy == "chunked-prefill":
        lifecycle = lifecycle or "continuous"
    point = choose(load_policy(config.policy), config.layout, lifecycle)
    parts = [config.policy, config.layout, config.lifecycle]
    return point, "+".join(part for part in parts if part is not None)


def _max_model_len(
    config: RunConfig, trace: Trace, model: Model | None, point: Point
) -> tuple[int, list[str]]:
    own = None if model is None else model.max_positions
    if config.max_model_len is not None:
        if own is not None and config.max_model_len > own:
            raise PolicyChoiceError(
                f"--max-model-len {config.max_model_len} is over the {own} positions of the model"
            )
        return config.max_model_len, []
    if config.like is not None and own is not None:
        return own, []
    longest = trace.longest + (SPARE_TOKENS if point.lifecycle == "sglang" else 0)
    rounded = 1 << (longest - 1).bit_length()
    limit = rounded if own is None else min(rounded, own)
    return limit, [f"max_model_len is {limit} (longest request: {trace.longest} tokens)"]


def _own_budget(config: RunConfig, point: Point, limit: int) -> int | None:
    """The budget asked for; an engine's default one grows to the limit where prompts stay whole."""
    given = config.max_num_batched_tokens
    if config.like is None or given is None:
        return given
    if point.lifecycle == "continuous":
        return max(given, limit)
    return given


def _memory(
    config: RunConfig,
    settings: Settings,
    point: Point,
    model: Model | None,
    hardware: Hardware | None,
) -> tuple[Settings, dict[str, Any]]:
    """Usable KV blocks: given, or what the device has left, or without limit."""
    override = config.num_gpu_blocks_override
    if override is not None:  # one is vLLM's null block
        usable: int | None = override - 1
        return replace(settings, usable_blocks=usable), {"kv_blocks": usable}
    if model is None or hardware is None:
        return settings, {"kv_blocks": None}
    if config.mem_fraction_static is not None:
        usable = _static_blocks(config, settings, model, hardware)
        return replace(settings, usable_blocks=usable), {"kv_blocks": usable}
    drains = point.lifecycle == "drain"
    tokens = budget(point, settings) or settings.max_model_len
    memory = kv_capacity(
        model,
        hardware,
        tp=config.tp or 1,
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        utilization=_given(config.gpu_memory_utilization, 0.9),
        block_size=settings.block_size,
        max_num_batched_tokens=tokens,
        max_num_seqs=settings.max_num_seqs,
    )
    if not drains:
        usable = memory.blocks - 1
        return replace(settings, usable_blocks=usable), {"kv_blocks": usable}
    usable = memory.free_bytes // memory.block_bytes  # shared with each batch's activations
    shared = Activations(memory.free_bytes, memory.block_bytes, memory.slot_bytes)
    return replace(settings, usable_blocks=usable, activations=shared), {"kv_blocks": usable}


def _static_blocks(config: RunConfig, settings: Settings, model: Model, hardware: Hardware) -> int:
    share, tp = config.mem_fraction_static, config.tp or 1
    if config.gpu_memory_utilization is not None:
        raise PolicyChoiceError(
            f"--mem-fraction-static {share}: --gpu-memory-utilization divides the memory too; give "
            "one of the two"
        )
    page = settings.block_size * model.kv_bytes_per_token(config.kv_dtype, tp)
    return static_pool(model, hardware, share or 0.0, page, tp, config.dtype)


def _seats(config: RunConfig, settings: Settings) -> Settings:
    """SGLang's seats: with its defaults by the pool, and never more than half the pool's tokens."""
    blocks = settings.usable_blocks
    pool = UNLIMITED if blocks is None else blocks * settings.block_size
    by_pool = config.like is not None and config.max_num_seqs is None
    given = None if by_pool else settings.max_num_seqs
    seats = default_max_running_requests(pool, settings.max_model_len, given)
    return replace(settings, max_num_seqs=seats)


def requests_of(
    trace: Trace, block_size: int, hashed: bool, radix: bool = False
) -> Iterator[Request]:
    """The trace's requests in order of arrival, made as they are needed.

    Args:
        trace: what is asked for.
        block_size: tokens of a KV block.
        hashed: whether prefixes are cached, so that hashes matter.
        radix: by a radix cache, which takes the trace's own hashes and needs no whole blocks.
    """
    priority = trace.priority
    hashes = trace.hashes if hashed else None
    size = 1 << 16
    for begin in range(0, len(trace), size):
        part = slice(begin, begin + size)
        arrivals = trace.arrival_s[part].tolist()
        prompts = trace.prompt_tokens[part].tolist()
        outputs = trace.output_tokens[part].tolist()
        priorities = [0] * len(arrivals) if priority is None else priority[part].tolist()
        rows = zip(arrivals, prompts, outputs, priorities, strict=True)
        for index, (arrival, prompt, output, rank) in enumerate(rows, begin):
            keys: Sequence[int] = ()
            if hashes is not None and radix:
                keys = hashes.row(index).tolist()
            elif hashes is not None:
                keys = block_keys(hashes.row(index), hashes.block_tokens, prompt, block_size)
            yield Request(index, arrival, prompt, output, rank, keys)


def blocks_per_hash(trace: Trace, block_size: int) -> int:
    """KV blocks that one of the trace's hashes covers, as `block_keys` makes keys of them."""
    tokens = 0 if trace.hashes is None else trace.hashes.block_tokens
    return tokens // block_size if tokens and tokens % block_size == 0 else 1


def block_keys(
    ids: NDArray[np.int64], block_tokens: int, prompt: int, block_size: int
) -> list[int]:
    """Keys of a prompt's KV blocks, equal where all tokens up to a block's end are equal.

    Where a hash covers whole KV blocks, its id is the key of all of them; otherwise each full
    block has a key of its own.

    Args:
        ids: the prompt's hashes, one for every `block_tokens` tokens; they are chained, so an
            equal id means that all tokens before are equal too.
        block_tokens: tokens that one hash covers.
        prompt: tokens of the prompt.
        block_size: tokens of a KV block.
    """
    if block_tokens % block_size:
        ends = np.arange(1, prompt // block_size + 1) * block_size - 1  # each block's last token
        ends = ends[: int(np.searchsorted(ends, len(ids) * block_tokens))]
        ids = ids[ends // block_tokens] * block_tokens + ends % block_tokens
    keys: list[int] = ids.tolist()
    return keys
