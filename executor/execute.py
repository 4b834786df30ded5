"""A trace on a real model: weights, memory, warm-up, the run, and what it measured."""

from __future__ import annotations

import platform
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from executor import backends
from executor.attention import Backend
from executor.driver import Driver, InThread, Launcher, Spent, Stop, stop_on_interrupt
from executor.dry_run import measured_slot_bytes
from executor.graphs import capture_sizes
from executor.memory import check_weights, room
from executor.model import DTYPES, Transformer, fused
from executor.pages import Pager
from executor.steps import Steps
from executor.tokens import Tokens
from executor.utilisation import Utilisation
from executor.weights import load, randomise
from policies.compose import Point, PolicyChoiceError, Settings, budget, compose
from serving.blocks import Blocks
from serving.core import Core, Planner
from serving.prefix import PrefixBlocks
from serving.recorder import Recorder
from serving.request import Request
from sim.models import Model
from traces.trace import BlockHashes, Trace

WARM_REQUESTS, WARM_PROMPT, WARM_OUTPUT = 2, 256, 4
"""What runs before the clock starts, so that nothing is built or paged in for the first time."""


class PageBlocks(PrefixBlocks):
    """A prefix cache whose runs are single blocks, so that each has a page of its own."""

    def _keys(self, request: Request, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        for key, begin, end in super()._keys(request, first, last):
            for at in range(begin, end):
                yield key, at, at + 1


@dataclass(frozen=True)
class Machine:
    """What a model runs on, and how."""

    device: str = "cpu"
    dtype: str | None = None
    """fp32, bf16 or fp16; None: fp32 on a CPU, bf16 on a GPU."""
    attention: str | None = None
    weights: Path | None = None
    """A Hugging Face folder; None: random ones."""
    seed: int = 0


class Engine:
    """A model that is loaded, and the attention that it uses.

    Args:
        shape: the model.
        machine: where and how it runs.
        block_size: tokens of a KV block; None: 16, or the least that the attention takes.

    Raises:
        ValueError: a device, dtype or attention that is not there, weights that do not fit.
    """

    def __init__(
        self, shape: Model, machine: Machine | None = None, block_size: int | None = None
    ) -> None:
        machine = machine or Machine()
        self.shape, self.machine = shape, machine
        self.device = _device(machine.device)
        on_gpu = self.device.type == "cuda"
        self.dtype = machine.dtype or ("bf16" if on_gpu else "fp32")
        if self.dtype not in DTYPES:
            raise PolicyChoiceError(f"--dtype {self.dtype}: not one of {', '.join(DTYPES)}")
        dtype = DTYPES[self.dtype]
        self.backend: Backend = backends.choose(
            shape, dtype, self.device, machine.attention, block_size
        )
        self.block_size = block_size or max(16, self.backend.page_multiple)
        check_weights(shape, dtype, self.device)
        self.model = Transformer(shape, dtype, self.device, fused() if on_gpu else None)
        if machine.weights is None:
            randomise(self.model, machine.seed)
        else:
            load(self.model, machine.weights)

    def facts(self) -> dict[str, Any]:
        """What a record says of it."""
        on_gpu = self.device.type == "cuda"
        return {
            "device": torch.cuda.get_device_name(self.device) if on_gpu else _cpu_name(),
            "dtype": self.dtype,
            "attention": self.backend.name,
            "weights": "random" if self.machine.weights is None else str(self.machine.weights),
            "threads": None if on_gpu else torch.get_num_threads(),
        }


@dataclass(frozen=True)
class Measured:
    """What a run left behind."""

    recorder: Recorder
    spent: Spent
    interrupted: bool
    tokens: Tokens
    facts: dict[str, Any]
    """Memory, times, and the slots and pairs that the model counted itself, for the record."""


def measure(
    engine: Engine,
    trace: Trace,
    requests: Iterator[Request],
    point: Point,
    settings: Settings,
    override: int | None = None,
    share: float | None = None,
    recorder: Recorder | None = None,
) -> Measured:
    """Run a trace under a policy.

    Args:
        engine: the model.
        trace: lengths and hashes, from which the tokens are drawn.
        requests: the trace's requests, their hashes in the planner's block size.
        point, settings: the policy; its KV memory is worked out here.
        override: KV blocks, one of them the null block; None: by what is free.
        share: of the free memory.
        recorder: an empty one to fill, for those who look at it while the run goes on.

    Raises:
        DoesNotFitError: no memory for it.
        PolicyChoiceError: a user's own planner without `blocks`.
        PolicyError: the policy leaves requests waiting for ever.
    """
    shape, device, size = engine.shape, engine.device, engine.block_size
    dtype = DTYPES[engine.dtype]
    settings = replace(settings, block_size=size)
    longest = max(settings.max_model_len, int(trace.output_tokens.max()) + 1)
    most = budget(point, settings) or settings.max_model_len
    slot = None
    if device.type == "cuda":
        slot = measured_slot_bytes(engine, point.layout != "packed", most, settings.max_model_len)
    memory = room(shape, dtype, device, point, settings, trace, most, override, share, slot)
    settings = replace(settings, usable_blocks=memory.blocks, activations=memory.activations)
    tokens, warm = _tokens(trace, settings, shape.vocab, engine)
    recorded = device.type == "cuda" and engine.backend.capturable and point.layout == "packed"
    graphs = capture_sizes(settings.max_num_seqs) if recorded else ()
    steps = Steps(engine.model, engine.backend, tokens, memory.blocks, size, longest, graphs)
    inputs, counter = steps.inputs, steps.counter
    depth = 2 if settings.async_scheduling else 1
    threaded = InThread(steps.runner) if depth > 1 and device.type == "cpu" else None
    launcher: Launcher = threaded or steps.runner

    def drive(requests: Iterator[Request], stop: Stop, recorder: Recorder) -> Spent:
        planner = compose(point, settings, recorder)
        # what the warm-up left in the prefix cache is forgotten, its pages with it
        inputs.pager = Pager(memory.blocks, size, longest)
        _attach(planner, settings, inputs.pager)
        core = Core(planner, recorder, settings.max_model_len)
        driver = Driver(core, recorder, inputs, launcher, depth, stop, graphs=bool(graphs))
        return driver.run(requests)

    recorder = Recorder() if recorder is None else recorder
    try:
        with stop_on_interrupt() as stop:
            drive(iter(warm), stop, Recorder())
            before = counter.slots, counter.pairs
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            with Utilisation(device) as busy:
                spent = drive(requests, stop, recorder)
    finally:
        if threaded is not None:
            threaded.close()
    facts = {
        "kv_blocks": memory.blocks,
        "kv_blocks_from": memory.why,
        "wall_s": spent.wall_s,
        "model_s": spent.model_s,
        "idle_s": spent.idle_s,
        "computed_slots": counter.slots - before[0],
        "computed_pairs": counter.pairs - before[1],
        "activation_bytes_per_slot": slot,
        "peak_memory_bytes": _peak_bytes(device),
        "cuda_graphs": bool(graphs),
        "gpu_utilisation": busy.mean,
        "gpu_utilisation_missing": busy.why or None,
    }
    return Measured(recorder, spent, stop.asked, tokens, facts)


def _attach(planner: Planner, settings: Settings, pager: Pager) -> None:
    """Tell the pager of what happens to the planner's blocks."""
    blocks = getattr(planner, "blocks", None)
    if not isinstance(blocks, Blocks):
        raise PolicyChoiceError(
            f"{type(planner).__name__} has no `blocks`: to run on a model a planner of one's own "
            "keeps the Blocks that it is given there"
        )
    if isinstance(blocks, PrefixBlocks):
        blocks = PageBlocks(settings.usable_blocks, settings.block_size, settings.blocks_per_hash)
        cast(Any, planner).blocks = blocks
    blocks.listener = pager


def _tokens(
    trace: Trace, settings: Settings, vocab: int, engine: Engine
) -> tuple[Tokens, Sequence[Request]]:
    """The trace's tokens, with those of the warm-up behind them."""
    limit = settings.max_model_len
    prompt = min(WARM_PROMPT, max(limit - WARM_OUTPUT, 1))
    output = min(WARM_OUTPUT, limit - prompt)
    n = len(trace)
    warm = [Request(n + i, 0.0, prompt, output) for i in range(WARM_REQUESTS)]
    prompts = np.append(trace.prompt_tokens, [prompt] * len(warm))
    outputs = np.append(trace.output_tokens, [output] * len(warm))
    hashes = trace.hashes
    if hashes is not None:
        blocks = -(-prompt // hashes.block_tokens)
        ids = np.append(hashes.ids, np.zeros(blocks * len(warm), np.int64))
        ends = hashes.offsets[-1] + blocks * np.arange(1, len(warm) + 1)
        hashes = BlockHashes(ids, np.append(hashes.offsets, ends), hashes.block_tokens)
    seed = engine.machine.seed
    return Tokens(prompts, outputs, vocab, seed, hashes, engine.device), warm


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise PolicyChoiceError(f"--device {name}: give cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise PolicyChoiceError(f"--device {name}: give cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise PolicyChoiceError(f"--device {name}: PyTorch {torch.__version__} finds no CUDA GPU")
    return device


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _peak_bytes(device: torch.device) -> int:
    """The most memory the run held: on a GPU since the warm-up, on a CPU of the whole process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak << 10
