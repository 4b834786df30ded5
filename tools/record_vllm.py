#!/usr/bin/env python3
"""Record what the installed vLLM's own scheduler decides, without a GPU and without a model.

    python tools/record_vllm.py SPEC.json RECORDING.json

Runs in an environment of its own that holds vLLM (docs/conform.md says how to make one); nothing of
this project is needed there. A spec is a recording without its `iterations`: `name`, `config` and
`requests`, with `seed` and `max_iters` if wanted; `config.async_scheduling` chooses the mode.

The scheduler, its queues, its KV cache manager and, in asynchronous mode, the engine core's loop
are the installed ones. What is put in place of the real thing: the configuration of a two-layer
model that is never loaded, and an executor that runs nothing and invents one token where the
model would give one.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

DEFAULTS: dict[str, Any] = {
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 128,
    "max_model_len": 65536,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "policy": "fcfs",
    "block_size": 16,
    "num_gpu_blocks": 10000,
    "enable_prefix_caching": False,
    "watermark": 0.0,
    "scheduler_reserve_full_isl": True,
    "async_scheduling": False,
}
"""Settings that a spec may leave out."""

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 131072,
    "torch_dtype": "float16",
}

IDLE_TURNS = 5  # in which nothing can change any more: it is stuck


def tokens(kind: str, seed: int, owner: int) -> Iterator[int]:
    """Token ids that only this owner has, without end."""
    source = random.Random(f"{kind}/{seed}/{owner}")
    while True:
        yield source.randrange(1 << 30)


def prompt_of(request: dict[str, Any], seed: int) -> list[int]:
    """The prompt's tokens; its head is that of everybody with the same prefix."""
    length, prefix = request["prompt_len"], request.get("prefix_id")
    shared = 0 if prefix is None else min(length, request["prefix_len"])
    head = tokens("prefix", seed, prefix or 0)
    own = tokens("prompt", seed, request["idx"])
    return [next(head) for _ in range(shared)] + [next(own) for _ in range(length - shared)]


def configure(config: dict[str, Any], folder: str) -> Any:
    """vLLM's own configuration object for these settings, checked to have kept them."""
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig

    asynchronous = config["async_scheduling"]
    scheduler = {
        name: config[name]
        for name in (
            "max_model_len",
            "max_num_batched_tokens",
            "max_num_seqs",
            "enable_chunked_prefill",
            "long_prefill_token_threshold",
            "policy",
            "watermark",
            "scheduler_reserve_full_isl",
        )
    }
    made = VllmConfig(
        model_config=ModelConfig(
            model=folder,
            tokenizer=folder,
            skip_tokenizer_init=True,
            dtype="float16",
            max_model_len=config["max_model_len"],
        ),
        scheduler_config=SchedulerConfig(
            is_encoder_decoder=False, async_scheduling=asynchronous, **scheduler
        ),
        cache_config=CacheConfig(
            block_size=config["block_size"],
            num_gpu_blocks_override=config["num_gpu_blocks"],
            enable_prefix_caching=config["enable_prefix_caching"],
        ),
    )
    made.scheduler_config.async_scheduling = asynchronous  # the CPU platform turns it off
    for name, value in scheduler.items():
        kept = getattr(made.scheduler_config, name, value)
        if kept != value:
            raise SystemExit(f"vLLM changed {name} from {value} to {kept}")
    return made


def kv_spec(config: dict[str, Any]) -> Any:
    """The KV cache of one full-attention layer, whose size plays no part."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    return FullAttentionSpec(
        block_size=config["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32
    )


class Recorder:
    """Hands requests in, invents tokens, and writes a line for each call of the scheduler."""

    def __init__(self, spec: dict[str, Any], config: dict[str, Any], scheduler: Any) -> None:
        self.scheduler = scheduler
        self.pool = scheduler.kv_cache_manager.block_pool
        self.pending = sorted(spec["requests"], key=lambda r: (r["arrival_step"], r["idx"]))
        self.lines: list[dict[str, Any]] = []
        self.requests: dict[int, Any] = {}
        self._seed = spec.get("seed", 0)
        self._hasher = self._make_hasher(config)
        self._outputs: dict[int, Iterator[int]] = {}
        self._preempted: list[int] = []
        self._running: set[int] = set()
        genuine = scheduler._preempt_request

        def listen(request: Any, *args: Any, **kwargs: Any) -> Any:
            self._preempted.append(int(request.request_id))
            return genuine(request, *args, **kwargs)

        scheduler._preempt_request = listen

    @staticmethod
    def _make_hasher(config: dict[str, Any]) -> Any:
        if not config["enable_prefix_caching"]:
            return None
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        init_none_hash(sha256)
        return get_request_block_hasher(config["block_size"], sha256)

    def arrivals(self, step: int) -> Iterator[Any]:
        """vLLM's request objects of those that arrive by `step`."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        while self.pending and self.pending[0]["arrival_step"] <= step:
            row = self.pending.pop(0)
            index = row["idx"]
            request = Request(
                request_id=str(index),
                prompt_token_ids=prompt_of(row, self._seed),
                sampling_params=SamplingParams(max_tokens=row["output_len"], ignore_eos=True),
                pooling_params=None,
                arrival_time=row["arrival_step"] + index * 1e-6,
                priority=row.get("priority", 0),
                block_hasher=self._hasher,
            )
            self.requests[index] = request
            self._outputs[index] = tokens("out", self._seed, index)
            yield request

    def before(self) -> None:
        """Call just before the scheduler is."""
        self._running = {int(r.request_id) for r in self.scheduler.running}
        self._preempted.clear()

    def after(self, step: int, output: Any) -> dict[str, Any]:
        """Call just after; returns the line, to which `finished` is added later."""
        scheduled = {int(k): n for k, n in output.num_scheduled_tokens.items()}
        found = {
            str(i): self.requests[i].num_computed_tokens - n
            for i, n in scheduled.items()
            if i not in self._running and self.requests[i].num_computed_tokens > n
        }
        waiting = len(self.scheduler.waiting)
        waiting += len(getattr(self.scheduler, "kv_holding_waiting", ()))
        line: dict[str, Any] = {
            "step": step,
            "scheduled": {str(i): n for i, n in scheduled.items()},
            "preempted": list(self._preempted),
            "free_blocks": self.pool.get_num_free_blocks(),
            "running": len(self.scheduler.running),
            "waiting": waiting,
            "finished": [],
        }
        if found:
            line["cache_hit"] = found
        self.lines.append(line)
        return line

    def sampled(self, output: Any, samples: Any) -> Any:
        """What the model would have given back: a token for each request that `samples` one."""
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(output.num_scheduled_tokens)
        given = [
            [next(self._outputs[int(name)])] if samples(self.requests[int(name)]) else []
            for name in names
        ]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=given,
        )

    def quiet(self, line: dict[str, Any]) -> bool:
        """Whether this call changed nothing and nothing is still to come."""
        return not (line["scheduled"] or line["preempted"] or self.pending)

    def unfinished(self) -> list[int]:
        """Who has not finished."""
        left = [row["idx"] for row in self.pending]
        return sorted(left + [i for i, r in self.requests.items() if not r.is_finished()])


def record_synchronous(spec: dict[str, Any], config: dict[str, Any], made: Any) -> Any:
    """Schedule, run, update, in this order; every turn is a line, also an empty one."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    made.cache_config.num_gpu_blocks = config["num_gpu_blocks"]
    grammar = MagicMock()
    grammar.accept_tokens.return_value = True
    scheduler = Scheduler(
        vllm_config=made,
        kv_cache_config=KVCacheConfig(
            num_blocks=config["num_gpu_blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], kv_spec(config))],
        ),
        structured_output_manager=grammar,
        block_size=config["block_size"],
        log_stats=False,
    )
    recorder = Recorder(spec, config, scheduler)
    idle = 0
    for step in range(spec.get("max_iters", 20000)):
        for request in recorder.arrivals(step):
            scheduler.add_request(request)
        recorder.before()
        output = scheduler.schedule()
        line = recorder.after(step, output)
        known = recorder.sampled(output, lambda r: r.num_computed_tokens >= r.num_tokens)
        scheduler.update_from_output(output, known)
        finished = [int(i) for i in line["scheduled"] if recorder.requests[int(i)].is_finished()]
        line["finished"] = finished
        if not recorder.pending and not scheduler.get_num_unfinished_requests():
            return recorder, "completed"
        idle = idle + 1 if recorder.quiet(line) else 0
        if idle == IDLE_TURNS:
            return recorder, "stuck"
    return recorder, "bounded"


class AsynchronousTurns:
    """The engine core's own busy loop around an executor that runs nothing."""

    def __init__(self, spec: dict[str, Any], config: dict[str, Any], made: Any) -> None:
        self.step = 0  # of the next call of the scheduler
        self.flight: list[dict[str, Any]] = []
        self.processed: list[dict[str, Any]] = []
        self.core = self._make_core(config, made)
        self.recorder = Recorder(spec, config, self.core.scheduler)

    def launched(self, output: Any) -> tuple[dict[str, Any], Any]:
        """A step was handed to the executor: what it will sample is settled now."""
        line = self.recorder.after(self.step, output)
        line["processed"] = []
        self.step += 1
        self.flight.append(line)
        return line, self.recorder.sampled(output, lambda r: not r.is_prefill_chunk)

    def resolved(self, line: dict[str, Any]) -> None:
        """The engine waits for a step's result: the oldest that is in flight."""
        if self.flight.pop(0) is not line:
            raise SystemExit("vLLM read the results of two steps out of order")
        self.processed.append(line)

    def _make_core(self, config: dict[str, Any], made: Any) -> Any:
        from vllm.v1.engine.core import EngineCore, EngineCoreProc, EngineShutdownState
        from vllm.v1.executor.abstract import Executor
        from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

        turns = self

        class Result(Future):
            def __init__(self, line: dict[str, Any], value: Any) -> None:
                super().__init__()
                self._line, self._value = line, value

            def result(self, timeout: float | None = None) -> Any:
                if not self.done():
                    turns.resolved(self._line)
                    self.set_result(self._value)
                return super().result()

        class Nowhere(Executor):
            def _init_executor(self) -> None:
                self.waiting: tuple[dict[str, Any], Any] | None = None

            def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> Any:
                answers = {
                    "get_supported_kv_cache_layouts": [["LBNHC"]],
                    "get_supported_tasks": [("generate",)],
                    "compile_or_warm_up_model": [],
                }
                return answers.get(method, [None])

            def get_kv_cache_specs(self) -> Any:
                return [{"model.layers.0.self_attn.attn": kv_spec(config)}]

            def determine_available_memory(self) -> list[int]:
                return [1 << 40]

            def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
                line, value = turns.launched(scheduler_output)
                if not scheduler_output.total_num_scheduled_tokens:
                    return Result(line, EMPTY_MODEL_RUNNER_OUTPUT)
                self.waiting = (line, value)
                started: Future = Future()
                started.set_result(None)
                return started

            def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
                line, value = self.waiting
                return Result(line, value)

            def check_health(self) -> None:
                return

            @classmethod
            def supports_async_scheduling(cls) -> bool:
                return True

        class Core(EngineCoreProc):
            def __init__(self) -> None:  # its own opens sockets; this is what its loop reads
                self.input_queue = queue.Queue()
                self.output_queue = queue.Queue()
                self.engine_index = 0
                self.engines_running = False
                self.shutdown_state = EngineShutdownState.RUNNING
                self.tensor_ipc_receiver = None
                self.publish_dp_lb_stats = False
                self.process_input_queue_block = True
                self.enable_fault_tolerance = False
                EngineCore.__init__(self, made, Nowhere, log_stats=False)

        return Core()

    def record(self, most: int) -> str:
        """Turn the loop until nothing is left; returns how it ended."""
        from vllm.v1.engine import EngineCoreRequestType

        core, recorder = self.core, self.recorder
        recorder._hasher = core.request_block_hasher
        idle = 0
        while self.step < most:
            if not core.has_work():
                if not recorder.pending:
                    return "completed"
                self.step = max(self.step, recorder.pending[0]["arrival_step"])
            for request in recorder.arrivals(self.step):
                core.input_queue.put_nowait((EngineCoreRequestType.ADD, (request, 0)))
            calls = len(recorder.lines)
            self.processed.clear()
            core._process_input_queue()
            recorder.before()
            core._process_engine_step()
            self._finishes()
            if len(recorder.lines) > calls:
                quiet = recorder.quiet(recorder.lines[-1])
                quiet = quiet and core.scheduler.get_num_unfinished_requests() > 0
                idle = idle + 1 if quiet else 0
                if idle == IDLE_TURNS:
                    return "stuck"
        return "bounded"

    def _finishes(self) -> None:
        """Who finished with the steps whose results were read in this turn."""
        ended: set[int] = set()
        while not self.core.output_queue.empty():
            _, outputs = self.core.output_queue.get_nowait()
            ended |= {int(o.request_id) for o in outputs.outputs if o.finish_reason is not None}
        for line in self.processed:
            self.recorder.lines[-1]["processed"].append(line["step"])
            line["finished"] = [int(i) for i in line["scheduled"] if int(i) in ended]


def record(spec: dict[str, Any], folder: str) -> dict[str, Any]:
    """The whole recording of a spec."""
    from vllm import __version__

    given = {name: value for name, value in spec["config"].items() if name in DEFAULTS}
    config = {**DEFAULTS, **given}
    (Path(folder) / "config.json").write_text(json.dumps(MODEL))
    made = configure(config, folder)
    if config["async_scheduling"]:
        turns = AsynchronousTurns(spec, config, made)
        outcome = turns.record(spec.get("max_iters", 20000))
        recorder = turns.recorder
        config["batch_queue_size"] = turns.core.batch_queue_size
    else:
        recorder, outcome = record_synchronous(spec, config, made)
    config["usable_blocks"] = config["num_gpu_blocks"] - 1
    return {
        "name": spec["name"],
        "vllm_version": __version__,
        "note": spec.get("note", ""),
        "seed": spec.get("seed", 0),
        "config": config,
        "outcome": outcome,
        "unfinished": recorder.unfinished(),
        "max_iters": spec.get("max_iters", 20000),
        "requests": spec["requests"],
        "iterations": recorder.lines,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("spec", type=Path)
    parser.add_argument("recording", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_CACHE_ROOT", folder)
        os.environ.setdefault("VLLM_CONFIG_ROOT", folder)
        made = record(json.loads(args.spec.read_text()), folder)
    args.recording.write_text(json.dumps(made, separators=(",", ":")) + "\n")
    print(f"{args.recording}: {len(made['iterations'])} steps, {made['outcome']}")


if __name__ == "__main__":
    main()
