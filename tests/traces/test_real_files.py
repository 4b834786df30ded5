"""The public traces, read whole; totals equal to sums that plain Python makes of the same lines."""

from __future__ import annotations

import csv
import json
from datetime import datetime

import numpy as np
import pytest

from tests.shared import shared
from tests.traces.files import said
from traces import load
from traces.describe import shared_prefix_share

pytestmark = pytest.mark.shared


def test_azure_conversation() -> None:
    path = shared("traces", "AzureLLMInferenceTrace_conv.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    trace = load(path)
    assert len(trace) == len(rows) == 19_366
    assert trace.prompt_tokens.tolist() == [int(row["ContextTokens"]) for row in rows]
    assert trace.output_tokens.tolist() == [int(row["GeneratedTokens"]) for row in rows]

    def ticks(stamp: str) -> int:
        """100 ns since midnight of the first day, by hand."""
        clock, fraction = stamp.split(".")
        whole = datetime.fromisoformat(clock) - datetime(2023, 11, 16)
        return (whole.days * 86400 + whole.seconds) * 10**7 + int(fraction)

    first = ticks(rows[0]["TIMESTAMP"])
    expected = np.array([ticks(row["TIMESTAMP"]) - first for row in rows])
    np.testing.assert_array_equal(np.rint(trace.arrival_s * 1e7).astype(np.int64), expected)


def test_mooncake_conversation() -> None:
    path = shared("traces", "mooncake_conversation.jsonl")
    with path.open() as file:
        rows = [json.loads(line) for line in file]
    trace = load(path)
    assert len(trace) == len(rows) == 12_031
    assert int(trace.prompt_tokens.sum()) == sum(row["input_length"] for row in rows)
    assert int(trace.output_tokens.sum()) == sum(row["output_length"] for row in rows)
    assert trace.arrival_s.tolist() == [row["timestamp"] / 1000 for row in rows]
    assert trace.hashes is not None
    assert trace.hashes.block_tokens == 512
    assert trace.hashes.ids.tolist() == [i for row in rows for i in row["hash_ids"]]
    assert said(trace, "12,031 of 12,031 requests share their arrival time")
    # The share of prompt tokens that a cache which keeps everything would not compute again.
    seen: set[int] = set()
    hit = 0
    for row in rows:
        for block, i in enumerate(row["hash_ids"]):
            if i in seen:
                hit += min(512, row["input_length"] - 512 * block)
            seen.add(i)
    assert shared_prefix_share(trace) == hit / sum(row["input_length"] for row in rows)


def test_measured_runs_are_native_csv() -> None:
    for path in shared("truth", "llmservingsim-vllm-e2e").glob("*/requests.csv"):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        trace = load(path)
        assert trace.prompt_tokens.tolist() == [int(row["prompt_tokens"]) for row in rows]
        assert trace.arrival_s.tolist() == [float(row["arrival_s"]) for row in rows]
