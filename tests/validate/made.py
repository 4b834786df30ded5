"""Runs that were never measured: simulated with a known cost, then written as a source has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lengthwise.api import run
from lengthwise.config import RunConfig
from lengthwise.prepare import prepare
from serving.record import Record
from sim.fitted import FittedCost
from tests.sim.test_cost_models import fitted
from traces.trace import BlockHashes, Trace

ENGINE = {
    "model": "meta-llama/Llama-3.1-8B",
    "gpu": "NVIDIA H100 80GB HBM3",
    "engine": "vLLM",
    "max_num_batched_tokens": 2048,
    "max_num_seqs": {"value": 16, "recorded": True},
    "max_model_len": None,
    "chunked_prefill": True,
    "prefix_caching": True,
    "async_scheduling": {"value": True},
    "num_gpu_blocks": {"value": None, "upper_bound": 260},
    "dtype": "bfloat16",
    "kv_cache_dtype": "bfloat16 (auto)",
    "tensor_parallel": 1,
}


def trace(n: int = 40, rate: float = 40.0, seed: int = 5) -> Trace:
    """Poisson arrivals; prompts share their first blocks in groups."""
    random = np.random.default_rng(seed)
    arrival = np.cumsum(random.exponential(1 / rate, n))
    prompts = random.integers(20, 1500, n)
    outputs = random.integers(1, 50, n)
    rows = []
    for i, prompt in enumerate(prompts):
        block = np.arange(prompt // 16)
        rows.append(np.where(block < 8, 100 * (i % 3) + block, 1000 * (i + 1) + block))
    offsets = np.cumsum([0, *(len(r) for r in rows)])
    hashes = BlockHashes(np.concatenate(rows), offsets, 16)
    return Trace(arrival - arrival[0], prompts, outputs, hashes=hashes, name="made")


def cost_file(folder: Path, name: str = "cost.json", **options: Any) -> Path:
    path = folder / name
    FittedCost(fitted().calibration, **options).save(path)
    return path


def simulated(requests: Trace, cost: Path, **fields: Any) -> Record:
    how: dict[str, Any] = {"policy": "chunked-prefill", "cost": str(cost), "model": "llama-3.1-8b"}
    config = RunConfig.of(**(how | {"hardware": "h100", "max_num_seqs": 16} | fields))
    return run(prepare(config, requests), requests)


def as_vllm(requests: Trace, cost: Path, **fields: Any) -> Record:
    """As an engine with the settings of `ENGINE` would run it."""
    return simulated(
        requests,
        cost,
        like="vllm",
        max_num_batched_tokens=2048,
        num_gpu_blocks_override=260,
        **fields,
    )


def as_measured(record: Record, **facts: Any) -> Record:
    """A simulated record as `lengthwise execute` would have left it."""
    simulators = ("cost", "hardware", "like", "cuda_graphs")
    run_fields = {k: v for k, v in record.config["run"].items() if k not in simulators}
    known = {"backend": "measured", "device": "this CPU", "dtype": "bf16", "block_size": 16}
    config = record.config | {"run": run_fields} | known | facts
    return Record(config, record.requests, record.steps, record.events, record.notes)


def write_folder(folder: Path, record: Record, requests: Trace, **changed: Any) -> Path:
    """`requests.csv` in another order, `config.json` and `prompt_blocks16.jsonl`."""
    folder.mkdir()
    names = ["request", "arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s"]
    record.requests[names].sample(frac=1, random_state=1).to_csv(
        folder / "requests.csv", index=False
    )
    (folder / "config.json").write_text(json.dumps(ENGINE | changed))
    if requests.hashes is not None:
        lines = [
            json.dumps({"request": i, "hash_ids": requests.hashes.row(i).tolist()})
            for i in range(len(requests))
        ]
        (folder / "prompt_blocks16.jsonl").write_text("\n".join(lines))
    return folder


def write_peer(folder: Path, record: Record, factor: float) -> None:
    columns = ("ttft_s", "tpot_s", "e2e_s")
    peer = pd.DataFrame({f"peer_{c}": factor * record.requests[c] for c in columns})
    peer.insert(0, "request", record.requests["request"])
    peer.to_csv(folder / "peer_llmservingsim.csv", index=False)
