#!/usr/bin/env python3
"""Record what the installed SGLang's own scheduler decides, without a GPU and without a model.

    python tools/record_sglang.py SPEC.json RECORDING.json

Runs in an environment of its own that holds SGLang (docs/conform.md says how to make one); nothing
of this project is needed there. A spec is a recording without its `iterations`: `name`, `config`
and `requests`, with `seed` and `max_iters` if wanted.

The scheduler is the installed one, built by its own constructor on the CPU; this file only turns
the crank as `Scheduler.event_loop_normal` does and writes down what it sees. What is put in place
of the real thing: a two-layer model that is never run, one invented token where the model would
give one, and the sockets to the tokenizer, which lead nowhere.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import tempfile
import warnings
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFAULTS: dict[str, Any] = {
    "max_total_tokens": 100_000,
    "max_running_requests": 64,
    "chunked_prefill_size": 8192,
    "max_prefill_tokens": 16_384,
    "enable_mixed_chunk": False,
    "schedule_policy": "fcfs",
    "schedule_conservativeness": 1.0,
    "page_size": 1,
    "disable_radix_cache": True,
    "ignore_eos": True,
    "context_len": 131_072,
}
"""Settings that a spec may leave out."""

VOCABULARY = 1 << 22
FIRST_TOKEN = 1000  # below are special ones
IDLE_TURNS = 5  # with nothing to come: it is stuck


class Alphabets:
    """Tokens for everybody from an alphabet of their own: requests share what they are said to."""

    def __init__(self, requests: list[dict[str, Any]], seed: int) -> None:
        prefixes = {r["prefix_id"] for r in requests if r.get("prefix_id") is not None}
        owners = [("request", r["idx"]) for r in requests]
        owners += [("prefix", p) for p in sorted(prefixes)]
        self._letters = {owner: place for place, owner in enumerate(owners)}
        self._size = (VOCABULARY - FIRST_TOKEN) // len(owners)
        self._seed = seed
        self._outputs: dict[int, random.Random] = {}

    def _draw(self, source: random.Random, owner: tuple[str, int]) -> int:
        word = source.randrange(self._size)
        return FIRST_TOKEN + word * len(self._letters) + self._letters[owner]

    def prompt(self, request: Mapping[str, Any]) -> array[int]:
        """A request's prompt, its prefix first."""
        length, shared, prefix = request["prompt_len"], 0, request.get("prefix_id")
        tokens = array("q")
        if prefix is not None:
            source = random.Random(f"{self._seed}/prefix/{prefix}")
            shared = min(length, request["prefix_len"])
            tokens.extend(self._draw(source, ("prefix", prefix)) for _ in range(shared))
        source = random.Random(f"{self._seed}/request/{request['idx']}")
        own = ("request", request["idx"])
        tokens.extend(self._draw(source, own) for _ in range(length - shared))
        return tokens

    def output(self, index: int) -> int:
        """The next token that a request makes."""
        if index not in self._outputs:
            self._outputs[index] = random.Random(f"{self._seed}/output/{index}")
        return self._draw(self._outputs[index], ("request", index))


def prepare_environment(scratch: Path) -> None:
    """Before the first import of SGLang: no tuning from outside, no network, no GPU kernels."""
    for name in [n for n in os.environ if n.startswith("SGLANG_")]:
        del os.environ[name]
    os.environ.update(
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_VERBOSITY="error",
        OMP_NUM_THREADS="1",
        PYTHONHASHSEED="0",
        TRITON_INTERPRET="1",  # pages of more than one token are given out by a Triton kernel
        SGLANG_CACHE_DIR=str(scratch / "sglang"),
        TORCHINDUCTOR_CACHE_DIR=str(scratch / "inductor"),
        TRITON_CACHE_DIR=str(scratch / "triton"),
    )
    tempfile.tempdir = str(scratch)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)


def declare_vision_operators() -> Any:
    """Let torchvision be imported beside a CPU build of torch, whose operators it cannot load.

    Returns:
        What must be kept alive.
    """
    import torch

    torch.set_num_threads(1)
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def register_model() -> None:
    """Give SGLang a model class that holds one number and is never called."""
    import torch
    from sglang.srt.models.registry import ModelRegistry

    class Hollow(torch.nn.Module):
        def __init__(self, config: Any = None, *_: Any, **__: Any) -> None:
            super().__init__()
            self.config = config
            self.weight = torch.nn.Parameter(torch.zeros(1))

    ModelRegistry.get_supported_archs()
    ModelRegistry.models["LlamaForCausalLM"] = Hollow


def write_model(folder: Path, context_len: int) -> Path:
    """A model folder that has nothing but its config."""
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": context_len,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def build_scheduler(config: dict[str, Any], model: Path) -> Any:
    """SGLang's own scheduler with these settings; an error if it changed one of them."""
    from sglang.srt.managers.scheduler import Scheduler, SpawnRanks
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import PortArgs, ServerArgs

    passed = {k: v for k, v in config.items() if k not in ("ignore_eos", "context_len")}
    arguments = ServerArgs(
        **passed,
        model_path=str(model),
        load_format="dummy",
        device="cpu",
        dtype="bfloat16",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        skip_tokenizer_init=True,
        mem_fraction_static=0.5,  # max_total_tokens decides
        log_level="error",
        random_seed=0,
    )
    ports = PortArgs.init_new(arguments)
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
    scheduler = Scheduler(arguments, ports)
    scheduler.ipc_channels.send_to_tokenizer.socket = None
    scheduler.ipc_channels.send_to_detokenizer.socket = None
    no_mix = config["chunked_prefill_size"] < 0 and config["enable_mixed_chunk"]
    kept = {
        "max_total_tokens": scheduler.max_total_num_tokens,
        "max_running_requests": scheduler.max_running_requests,
        "max_prefill_tokens": scheduler.max_prefill_tokens,
        "chunked_prefill_size": scheduler.chunked_prefill_size or -1,
        "enable_mixed_chunk": scheduler.is_mixed_chunk or no_mix,
        "page_size": scheduler.page_size,
        "disable_radix_cache": scheduler.disable_radix_cache,
    }
    for name, value in kept.items():
        if value != config[name]:
            raise SystemExit(f"SGLang made {value} of {name} {config[name]}")
    if scheduler.enable_overlap:
        raise SystemExit("SGLang did not switch overlap scheduling off")
    return scheduler


class Session:
    """One recording: requests go in, turns of the event loop come out as lines."""

    def __init__(self, scheduler: Any, config: dict[str, Any], alphabets: Alphabets) -> None:
        from sglang.srt.managers.schedule_batch import ScheduleBatch

        self.scheduler = scheduler
        self.config = config
        self.alphabets = alphabets
        self.requests: dict[int, Any] = {}  # SGLang's own, by idx
        self._retracted: list[int] = []
        scheduler.tp_worker.forward_batch_generation = self._invent
        genuine = ScheduleBatch.retract_decode

        def listen(batch: Any) -> Any:
            outcome = genuine(batch)
            victims, _, aborted = outcome
            if aborted:
                raise SystemExit("SGLang aborted a request for want of memory; not recorded")
            self._retracted.extend(int(r.rid) for r in victims)
            return outcome

        ScheduleBatch.retract_decode = listen

    def _invent(self, batch: Any, **_: Any) -> Any:
        """A token a row. Those of prompts that go on are thrown away by the scheduler."""
        import torch
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput
        from sglang.srt.managers.utils import GenerationBatchResult

        tokens = [
            1 if r.inflight_middle_chunks > 0 else self.alphabets.output(int(r.rid))
            for r in batch.reqs
        ]
        return GenerationBatchResult(
            logits_output=LogitsProcessorOutput(next_token_logits=None),
            next_token_ids=torch.tensor(tokens, dtype=torch.int64),
            can_run_cuda_graph=False,
        )

    def add(self, request: Mapping[str, Any]) -> None:
        """It arrives; an error if SGLang would cut or abort it."""
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = SamplingParams(
            max_new_tokens=request["output_len"],
            ignore_eos=self.config["ignore_eos"],
            temperature=0.0,
        )
        sampling.normalize(None)
        self.scheduler.handle_generate_request(
            TokenizedGenerateReqInput(
                rid=str(request["idx"]),
                input_text=None,
                input_ids=self.alphabets.prompt(request),
                input_embeds=None,
                mm_inputs=None,
                token_type_ids=None,
                sampling_params=sampling,
                return_logprob=False,
                logprob_start_len=-1,
                top_logprobs_num=0,
                token_ids_logprob=None,
                stream=False,
            )
        )
        taken = self.scheduler.waiting_queue[-1]
        whole = (
            taken.rid == str(request["idx"])
            and taken.to_finish is None
            and len(taken.origin_input_ids) == request["prompt_len"]
            and taken.sampling_params.max_new_tokens == request["output_len"]
        )
        if not whole:
            raise SystemExit(f"request {request['idx']} does not fit: SGLang cuts or aborts it")
        self.requests[request["idx"]] = taken

    def turn(self, step: int) -> dict[str, Any]:
        """One turn of the event loop, as a line of the recording."""
        scheduler = self.scheduler
        under_way = scheduler.chunked_req
        self._retracted.clear()
        plan = scheduler.get_next_batch_to_run(
            running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
        )
        scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
        scheduler.cur_batch_for_debug = batch
        line = {"step": step, **self._decisions(batch)}
        hits = self._hits(batch, under_way)
        if batch:
            scheduler.process_batch_result(batch, scheduler.run_batch(batch))
        else:
            scheduler._sched_idled = True
            scheduler.on_idle()
        scheduler.last_batch = batch
        line["finished"] = [i for i in line["scheduled"] if self.requests[i].finished()]
        if hits:
            line["cache_hit"] = hits
        return line

    def _decisions(self, batch: Any) -> dict[str, Any]:
        """What was decided, before anything of it is run."""
        scheduler = self.scheduler
        kind, tokens = "idle", []
        if batch is not None:
            mode = batch.forward_mode
            if mode.is_decode():
                kind, tokens = "decode", [1] * len(batch.reqs)
            else:
                kind, tokens = "mixed" if mode.is_mixed() else "prefill", batch.extend_lens
        batches = [b for b in (scheduler.running_batch, batch) if b is not None]
        running = {r.rid for b in batches for r in b.reqs if not r.finished()}
        chunked = scheduler.chunked_req
        if chunked is not None:
            running.add(chunked.rid)
        rows = [] if batch is None else batch.reqs
        line = {
            "kind": kind,
            "scheduled": {int(r.rid): int(n) for r, n in zip(rows, tokens, strict=True)},
            "retracted": list(self._retracted),
            "available": int(scheduler.token_to_kv_pool_allocator.available_size()),
            "running": len(running),
            "waiting": len(scheduler.waiting_queue),
        }
        if not self.config["disable_radix_cache"]:
            line["evictable"] = int(scheduler.tree_cache.evictable_size())
        line["ratio"] = round(scheduler.new_token_ratio_tracker.current, 6)
        if chunked is not None:
            line["chunked"] = int(chunked.rid)
        return line

    def _hits(self, batch: Any, under_way: Any) -> dict[int, int]:
        """Tokens that newly admitted requests found in the cache."""
        if batch is None or batch.forward_mode.is_decode():
            return {}
        decodes = batch.decoding_reqs or []
        return {
            int(r.rid): int(n)
            for r, n in zip(batch.reqs, batch.prefix_lens, strict=True)
            if n and r is not under_way and r not in decodes
        }


def record(spec: dict[str, Any]) -> dict[str, Any]:
    """The whole recording of a spec."""
    import sglang

    requests, limit = spec["requests"], spec.get("max_iters", 20_000)
    config = {**DEFAULTS, **{k: v for k, v in spec["config"].items() if k in DEFAULTS}}
    seed = spec.get("seed", 0)
    register_model()
    model = write_model(Path(tempfile.mkdtemp()) / "model", config["context_len"])
    scheduler = build_scheduler(config, model)
    session = Session(scheduler, config, Alphabets(requests, seed))
    waiting = sorted(requests, key=lambda r: (r["arrival_step"], r["idx"]), reverse=True)
    lines: list[dict[str, Any]] = []
    idle, outcome = 0, "bounded"
    while len(lines) < limit:
        while waiting and waiting[-1]["arrival_step"] <= len(lines):
            session.add(waiting.pop())
        line = session.turn(len(lines))
        lines.append(line)
        if not waiting and all(r.finished() for r in session.requests.values()):
            outcome = "completed"
            break
        idle = 0 if line["scheduled"] or line["retracted"] or waiting else idle + 1
        if idle == IDLE_TURNS:
            outcome = "stuck"
            break
    ratio = scheduler.new_token_ratio_tracker
    done = {i for i, r in session.requests.items() if r.finished()}
    return {
        "name": spec["name"],
        "sglang_version": sglang.__version__,
        "note": spec.get("note", ""),
        "seed": seed,
        "config": {
            **config,
            "overlap_schedule": False,
            "tree_cache": type(scheduler.tree_cache).__name__,
            "new_token_ratio_init": round(ratio.init, 9),
            "new_token_ratio_min": round(ratio.min, 9),
            "new_token_ratio_decay": round(ratio.decay, 12),
        },
        "outcome": outcome,
        "unfinished": [r["idx"] for r in requests if r["idx"] not in done],
        "max_iters": limit,
        "requests": requests,
        "iterations": lines,
    }


def write(recording: dict[str, Any], path: Path) -> None:
    """A line a request and a line an iteration, so that two recordings can be compared as text."""
    text = ["{"]
    for key, value in recording.items():
        if key in ("requests", "iterations"):
            rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value)
            text.append(f'"{key}":[\n{rows}\n]' + ("," if key == "requests" else ""))
        else:
            text.append(f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))},")
    path.write_text("\n".join([*text, "}\n"]))


def main() -> None:
    """Read the spec, record, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("spec", type=Path, help="a recording without its iterations")
    parser.add_argument("recording", type=Path, help="where it goes")
    arguments = parser.parse_args()
    spec = json.loads(arguments.spec.read_text())
    with tempfile.TemporaryDirectory() as scratch:
        prepare_environment(Path(scratch))
        kept = declare_vision_operators()
        write(record(spec), arguments.recording)
        del kept


if __name__ == "__main__":
    main()
