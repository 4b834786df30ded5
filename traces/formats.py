"""The formats that can be read, as one table: name, columns, how recognised, how read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from traces.blis import is_header, read_blis
from traces.documents import read_guidellm, read_vllm_bench
from traces.errors import TraceError
from traces.head import (
    Head,
    Sniff,
    by_blocks,
    by_header,
    by_key,
    by_keys,
    by_keys_and,
    by_magic,
    by_mention,
    by_name,
)
from traces.layout import Chunk, Column, Layout, Options
from traces.parquet import read_parquet
from traces.prompts import read_sharegpt, read_vllm_custom
from traces.servegen import read_servegen
from traces.source import Source
from traces.text_csv import read_csv
from traces.text_jsonl import get, read_jsonl
from traces.trouble import Trouble

Reader = Callable[[Source, Layout, Trouble, Options], Iterator[Chunk]]


@dataclass(frozen=True)
class Format:
    """One format: its name, what it is, its columns, how it is recognised and read."""

    name: str
    about: str
    layout: Layout
    read: Reader
    sniff: Sniff
    said: str = ""
    """What a user should know of every file of this format."""


NATIVE = Layout(
    (
        Column("arrival", "arrival_s", "number"),
        Column("prompt", "prompt_tokens"),
        Column("output", "output_tokens"),
        Column("priority", "priority", required=False),
        Column("tenant", "tenant", "text", required=False),
        Column("hash_ids", "hash_ids", "ids", required=False),
        Column("block_tokens", "block_tokens", required=False),
    )
)
AZURE = Layout(
    (
        Column("arrival", "TIMESTAMP", "stamp"),
        Column("prompt", "ContextTokens"),
        Column("output", "GeneratedTokens"),
    ),
    per_second=1_000_000_000,
)
BURSTGPT = Layout(
    (
        Column("arrival", "Timestamp", "number"),
        Column("prompt", "Request tokens"),
        Column("output", "Response tokens"),
    ),
    failed=lambda values: values["output"] == 0,
    failed_means="failed (0 response tokens)",
)
VIDUR = Layout(
    (
        Column("arrival", "arrived_at", "number"),
        Column("prompt", "num_prefill_tokens"),
        Column("output", "num_decode_tokens"),
    )
)
SPLITWISE = Layout(
    (
        Column("arrival", "arrival_timestamp", "number"),
        Column("prompt", "prompt_size"),
        Column("output", "token_size"),
    )
)
BLIS = Layout(
    (
        Column("arrival", "arrival_time_us"),
        Column("prompt", "input_tokens"),
        Column("output", "output_tokens"),
        Column("priority", "vllm_priority", required=False),
        Column("tenant", "tenant_id", "text", required=False),
        Column("status", "status", "text", required=False),
    ),
    per_second=1_000_000,
    failed=lambda values: ~np.isin(values.get("status", "ok"), ["ok", ""]),
    failed_means="failed (status is not ok)",
)
QWEN = Layout(
    (
        Column("arrival", "timestamp", "number"),
        Column("prompt", "input_length"),
        Column("output", "output_length"),
        Column("hash_ids", "hash_ids", "ids", required=False),
    ),
    block_tokens=16,
)
MOONCAKE = Layout(QWEN.columns, per_second=1000, block_tokens=512)
AIPERF = Layout(
    (
        Column("arrival", "metadata.request_start_ns"),
        Column("prompt", "metrics.input_sequence_length.value"),
        Column("output", "metrics.output_sequence_length.value"),
    ),
    per_second=1_000_000_000,
    failed_record=lambda r: bool(get(r, "error") or get(r, "metadata.was_cancelled")),
    failed_means="failed or cancelled",
)
LLMSERVINGSIM = Layout(
    (
        Column("arrival", "arrival_time_ns"),
        Column("prompt", "input_toks"),
        Column("output", "output_toks"),
    ),
    per_second=1_000_000_000,
)
VLLM_BENCH = Layout(
    (
        Column("arrival", "start_times", "number"),
        Column("prompt", "input_lens"),
        Column("output", "output_lens"),
    ),
    failed_record=lambda record: bool(record.get("errors")),
    failed_means="failed (errors)",
)
GUIDELLM = Layout(
    (
        Column("arrival", "request_start_time", "number"),
        Column("prompt", "prompt_tokens"),
        Column("output", "output_tokens"),
    )
)
COUNTED = Layout(
    (Column("arrival", "arrival"), Column("prompt", "prompt"), Column("output", "output_tokens"))
)
DRAWN = Layout(
    (
        Column("arrival", "arrival", "number"),
        Column("prompt", "input_tokens"),
        Column("output", "output_tokens"),
        Column("tenant", "client", "text"),
    )
)
AT_ONCE = "the file has no times: all requests arrive at 0 s"

FORMATS: tuple[Format, ...] = (
    Format("csv", "our own columns, CSV", NATIVE, read_csv, by_header),
    Format("jsonl", "our own columns, JSONL", NATIVE, read_jsonl, by_keys),
    Format("parquet", "our own columns, Parquet", NATIVE, read_parquet, by_magic(b"PAR1")),
    Format("azure", "Azure LLM inference traces 2023-2025, CSV", AZURE, read_csv, by_header),
    Format("burstgpt", "BurstGPT, CSV", BURSTGPT, read_csv, by_header),
    Format("vidur", "Vidur's traces, CSV", VIDUR, read_csv, by_header),
    Format("splitwise", "splitwise-sim's traces, CSV", SPLITWISE, read_csv, by_header),
    Format(
        "blis",
        "BLIS TraceV2, YAML header and CSV",
        BLIS,
        read_blis,
        lambda head, layout: (
            "it begins with a TraceV2 header" if is_header(head.data) else by_header(head, layout)
        ),
    ),
    Format("qwen-bailian", "Qwen-Bailian, JSONL", QWEN, read_jsonl, by_keys_and("chat_id")),
    Format("vllm-timed-trace", "vLLM timed_trace, JSONL", QWEN, read_jsonl, by_blocks(16, 512)),
    Format("mooncake", "Mooncake, JSONL", MOONCAKE, read_jsonl, by_keys),
    Format("aiperf", "AIPerf profile_export.jsonl", AIPERF, read_jsonl, by_keys),
    Format("llmservingsim", "LLMServingSim, JSONL", LLMSERVINGSIM, read_jsonl, by_keys),
    Format(
        "vllm-custom",
        "vLLM custom dataset, JSONL of prompts",
        COUNTED,
        read_vllm_custom,
        by_key("prompt"),
        f"{AT_ONCE}; the chat template is not applied",
    ),
    Format(
        "sharegpt",
        "ShareGPT conversations, JSON",
        COUNTED,
        read_sharegpt,
        by_mention("conversations"),
        AT_ONCE,
    ),
    Format("guidellm", "GuideLLM report, JSON", GUIDELLM, read_guidellm, by_mention("benchmarks")),
    Format(
        "vllm-bench",
        "vLLM bench serve detailed result, JSON",
        VLLM_BENCH,
        read_vllm_bench,
        by_mention("total_input_tokens", "num_prompts"),
    ),
    Format(
        "servegen",
        "ServeGen client files (folder, or one client)",
        DRAWN,
        read_servegen,
        by_name(r"chunk-\d+-(trace\.csv|dataset\.json)"),
        "drawn from ServeGen's rates and length histograms",
    ),
)
"""In the order in which they are tried."""

BY_NAME = {f.name: f for f in FORMATS}


def choose(source: Source) -> tuple[Format, str]:
    """The format of a file, from its content, and the reason.

    Raises:
        TraceError: nothing fits; the message says what was found.
    """
    if source.path.is_dir():
        return BY_NAME["servegen"], "it is a folder"
    head = Head.of(source)
    for candidate in FORMATS:
        reason = candidate.sniff(head, candidate.layout)
        if reason:
            return candidate, reason
    raise TraceError(
        f"{source.name}: no known trace format; it has {head.found}. Name one with --format "
        f"({', '.join(BY_NAME)}), or rename the columns to {', '.join(NATIVE.required)}."
    )
