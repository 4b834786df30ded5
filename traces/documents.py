"""Benchmark results that are one JSON document: vLLM's detailed result, GuideLLM's report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traces.errors import TraceError
from traces.layout import Chunk, Layout, Options
from traces.source import Source
from traces.text_jsonl import Record, parse_document, read_records
from traces.trouble import Trouble

MAX_DOCUMENT = 1 << 30
"""Largest document that is read, bytes; it is held in memory whole."""


def read_vllm_bench(
    source: Source, layout: Layout, trouble: Trouble, options: Options
) -> Iterator[Chunk]:
    """The requests of `vllm bench serve --save-result --save-detailed`.

    Raises:
        TraceError: not a detailed result, or its lists differ in length.
    """
    trouble.unit = "request"
    document = parse_document(source, MAX_DOCUMENT)
    lists = {name: _list(document, name, source) for name in layout.required}
    errors = document.get("errors")
    if isinstance(errors, list):
        lists["errors"] = errors
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) != 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise TraceError(f"{source.name}: lists of different lengths ({found}). Save it again.")
    rows = zip(*lists.values(), strict=True)
    records = (dict(zip(lists, row, strict=True)) for row in rows)
    yield from read_records(enumerate(records, 1), layout, trouble)


def _list(document: Any, name: str, source: Source) -> list[Any]:
    values = document.get(name) if isinstance(document, dict) else None
    if not isinstance(values, list):
        raise TraceError(
            f"{source.name}, column {name}: missing. "
            "Run vllm bench serve with --save-result --save-detailed.",
            file=source.name,
            column=name,
        )
    return values


def read_guidellm(
    source: Source, layout: Layout, trouble: Trouble, options: Options
) -> Iterator[Chunk]:
    """The successful requests of all benchmarks in a GuideLLM report, as they ran.

    Raises:
        TraceError: not such a report, or one without its requests.
    """
    trouble.unit = "request"
    document = parse_document(source, MAX_DOCUMENT)
    yield from read_records(enumerate(_guidellm(document, source, trouble), 1), layout, trouble)


def _guidellm(document: Any, source: Source, trouble: Trouble) -> Iterator[Record]:
    benchmarks = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(benchmarks, list):
        raise TraceError(f"{source.name}: no list named benchmarks. Give a GuideLLM JSON report.")
    for number, benchmark in enumerate(benchmarks, 1):
        requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
        done = requests.get("successful") if isinstance(requests, dict) else None
        if not isinstance(requests, dict) or not isinstance(done, list):
            raise TraceError(
                f"{source.name}: benchmark {number} has no requests.successful. "
                "Save the report with its requests."
            )
        for outcome in ("errored", "incomplete"):
            lost = requests.get(outcome)
            if isinstance(lost, list) and lost:
                trouble.left_out(outcome, len(lost))
        for record in done:
            if not isinstance(record, dict):
                raise TraceError(f"{source.name}: benchmark {number} has a request that is none.")
            # Reports before version 0.4 call it start_time.
            if "request_start_time" not in record and "start_time" in record:
                record = {**record, "request_start_time": record["start_time"]}
            yield record
