"""Measured runs as others write them: read back as they were run, or refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import lengthwise
from lengthwise.config import RunConfig
from lengthwise.validate.bench import read_bench
from lengthwise.validate.folder import read_folder
from lengthwise.validate.measured import MeasuredError
from lengthwise.validate.of_record import of_record
from lengthwise.validate.predict import configured, predict
from lengthwise.validate.settings import model_called
from sim.hardware import hardware_called
from tests.validate.made import (
    as_measured,
    as_vllm,
    cost_file,
    simulated,
    trace,
    write_folder,
)

BENCH: dict[str, Any] = {
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "request_rate": 2.0,
    "input_lens": [10, 20, 30, 5],
    "output_lens": [3, 1, 2, 0],
    "ttfts": [0.5, 0.25, 0.75, 0.0],
    "itls": [[0.125, 0.375], [], [0.0625], []],
    "start_times": [102.0, 100.0, 101.0, 103.0],
    "errors": ["", "", "", "timed out"],
}


def test_a_folder_is_simulated_as_it_was_run(tmp_path: Path) -> None:
    """Settings, hashes and order of the requests survive: the prediction is the run itself."""
    requests, cost = trace(), cost_file(tmp_path)
    mine = as_vllm(requests, cost)
    assert mine.summary["prefix_hit_rate"] > 0
    assert mine.summary["preemptions"] > 0
    found = read_folder(write_folder(tmp_path / "run", mine, requests))
    assert found.requests["request"].tolist() == list(range(40))
    config = configured(found, {"cost": str(cost)})
    assert (config.like, config.hardware, config.dtype) == ("vllm", "h100", "bf16")
    assert found.notes == ("num_gpu_blocks was not recorded: its upper bound, 260, is taken",)
    again = predict(found, config).record
    assert again.requests["e2e_s"].tolist() == pytest.approx(mine.requests["e2e_s"].tolist())
    assert again.events.equals(mine.events)


def test_without_hashes_prefixes_are_unknown_and_that_is_said(tmp_path: Path) -> None:
    requests, cost = trace(), cost_file(tmp_path)
    folder = write_folder(tmp_path / "run", as_vllm(requests, cost), requests)
    (folder / "prompt_blocks16.jsonl").unlink()
    found = read_folder(folder)
    record = predict(found, configured(found, {"cost": str(cost)})).record
    assert any("prefix caching is off" in note for note in record.notes)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "requests.csv").unlink(), "requests.csv: no such file"),
        (lambda f: (f / "config.json").write_text("{"), "not a readable JSON file"),
        (lambda f: (f / "config.json").write_text('{"engine": "SGLang"}'), "only vLLM's settings"),
        (lambda f: (f / "config.json").write_text('{"data_parallel": 2}'), "data_parallel"),
        (lambda f: _column(f, "ttft_s", None), "no column ttft_s"),
        (lambda f: _column(f, "ttft_s", -1.0), "ttft_s of request 3 is -1.0"),
        (lambda f: _column(f, "arrival_s", "soon"), "arrival_s of request 3 is soon"),
        (lambda f: (f / "prompt_blocks16.jsonl").write_text("{}"), "request and hash_ids a line"),
        (
            lambda f: (f / "prompt_blocks16.jsonl").rename(f / "prompt_blocksX.jsonl"),
            "name it prompt_blocksN.jsonl",
        ),
    ],
)
def test_a_folder_that_is_none_is_refused(spoil: Any, message: str, tmp_path: Path) -> None:
    requests = trace(8)
    record = as_vllm(requests, cost_file(tmp_path))
    folder = write_folder(tmp_path / "run", record, requests)
    spoil(folder)
    with pytest.raises(MeasuredError, match=message):
        read_folder(folder)


def _column(folder: Path, name: str, value: Any) -> None:
    table = pd.read_csv(folder / "requests.csv")
    if value is None:
        table = table.drop(columns=name)
    else:
        table[name] = table[name].astype(object)
        table.loc[table["request"] == 3, name] = value
    table.to_csv(folder / "requests.csv", index=False)


def test_the_clients_file(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(BENCH))
    found = read_bench(path)
    assert found.notes == ("1 failed requests are left out",)
    table = found.requests
    assert table["arrival_s"].tolist() == [0.0, 1.0, 2.0]
    assert table["prompt_tokens"].tolist() == [20, 30, 10]
    assert table["ttft_s"].tolist() == [0.25, 0.75, 0.5]
    assert table["e2e_s"].tolist() == [0.25, 0.8125, 1.0]
    assert np.isnan(table["tpot_s"][0])
    assert table["tpot_s"].tolist()[1:] == [0.0625, 0.25]
    assert found.itl is not None
    assert found.itl.values.tolist() == [0.0625, 0.125, 0.375]
    assert found.settings["model"] == "llama-3.1-8b"


def test_all_at_once_needs_no_times(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    raw = {k: v for k, v in BENCH.items() if k != "start_times"}
    path.write_text(json.dumps(raw | {"request_rate": "inf"}))
    assert read_bench(path).requests["arrival_s"].tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"itls": None}, "--save-detailed"),
        ({"start_times": None}, "no start_times"),
        ({"request_rate": "inf", "max_concurrency": 4, "start_times": None}, "no start_times"),
        ({"output_lens": [1]}, "lists of different lengths"),
        ({"ttfts": ["x", 1, 1, 1]}, "no number"),
        ({"errors": ["bad"] * 4}, "all 4 requests failed"),
    ],
)
def test_a_clients_file_that_is_none_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(BENCH | change))
    with pytest.raises(MeasuredError, match=message):
        read_bench(path)


def test_a_record_is_simulated_with_its_own_memory(tmp_path: Path) -> None:
    requests, cost = trace(), cost_file(tmp_path)
    record = simulated(requests, cost, num_gpu_blocks_override=260, enable_prefix_caching=False)
    assert record.summary["preemptions"] > 0
    found = of_record(as_measured(record), "mine")
    again = predict(found, configured(found, {"cost": str(cost)})).record
    assert again.events.equals(record.events)


def test_a_record_of_cuda_graphs_is_simulated_with_them(tmp_path: Path) -> None:
    requests, cost = trace(), cost_file(tmp_path)
    record = simulated(requests, cost, cuda_graphs=True)
    assert (record.steps["decode_slots"] > record.steps["decode_tokens"]).any()
    found = of_record(as_measured(record, cuda_graphs=True), "mine")
    again = predict(found, configured(found, {"cost": str(cost)})).record
    assert again.steps["decode_slots"].equals(record.steps["decode_slots"])


def test_a_record_whose_prefixes_matter_reads_its_trace_again(tmp_path: Path) -> None:
    """What a request table does not hold comes from the trace's file, if it is still the same."""
    path, cost = tmp_path / "t.jsonl", cost_file(tmp_path)
    rows = [
        {
            "timestamp": 300 * i,
            "input_length": 1024,
            "output_length": 20,
            "hash_ids": [1, 2 + i % 2],
        }
        for i in range(12)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    how = {"model": "llama-3.1-8b", "enable_prefix_caching": True, "max_num_seqs": 4}
    record = as_measured(lengthwise.replay(path, cost=str(cost), **how))
    found = of_record(record, "mine")
    assert found.trace.hashes is not None
    again = predict(found, configured(found, {"cost": str(cost)})).record
    assert again.events.equals(record.events)
    path.write_text("\n".join(json.dumps(row | {"input_length": 1025}) for row in rows))
    with pytest.raises(MeasuredError, match="no longer the trace"):
        of_record(record, "mine")
    path.unlink()
    with pytest.raises(MeasuredError, match="prefixes or priorities matter"):
        of_record(record, "mine")


def test_records_that_cannot_be_compared(tmp_path: Path) -> None:
    record = simulated(trace(5), cost_file(tmp_path))
    with pytest.raises(MeasuredError, match="of a simulated run"):
        of_record(record, "mine")
    with pytest.raises(MeasuredError, match="interrupted"):
        of_record(as_measured(record, interrupted=True), "mine")


def test_what_is_not_known_is_asked_for(tmp_path: Path) -> None:
    requests, cost = trace(5), cost_file(tmp_path)
    record = as_vllm(requests, cost)
    found = read_folder(write_folder(tmp_path / "a", record, requests, gpu="TPU", model=None))
    with pytest.raises(MeasuredError, match="give --model"):
        configured(found, {"cost": str(cost)})
    with pytest.raises(MeasuredError, match="give --hardware"):
        configured(found, {"model": "tiny"})
    known = configured(found, {"cost": str(cost), "model": "llama-3.1-8b"})
    assert isinstance(known, RunConfig)


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("NVIDIA GeForce RTX 4090 (24 GB)", "rtx-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition (96 GB)", "rtx-pro-6000"),
        ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("AMD EPYC", None),
    ],
)
def test_gpus_by_their_titles(title: str, name: str | None) -> None:
    assert hardware_called(title) == name


def test_models_by_their_names() -> None:
    assert model_called("meta-llama/Llama-3.1-8B-Instruct") == "llama-3.1-8b"
    assert model_called("acme/other") == "acme/other"
