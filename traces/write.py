"""Traces out: the formats that can be written, with what each of them cannot hold."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.blocks import reblock
from traces.errors import TraceError
from traces.trace import BlockHashes, Trace

COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
_START = np.datetime64("2024-01-01T00:00:00", "ns")
"""The date that stands for 0 s in formats of dates."""
_ROWS = 100_000
"""Rows that are formatted at a time."""


@dataclass(frozen=True)
class Writer:
    """One format: its extension, how it is written, which optional columns it holds."""

    extension: str
    write: Callable[[Trace, Any], None]
    holds: frozenset[str] = frozenset()
    block_tokens: int | None = None
    """The block size that its hash ids must have."""


def write(trace: Trace, path: str | os.PathLike[str], format: str | None = None) -> Trace:
    """Write `trace` to `path`, by extension where no format is named; `.gz` and `.zst` compress.

    The file appears whole or not at all. Returns the trace with a note of each column that the
    format cannot hold.

    Raises:
        TraceError: an unknown format or extension, or a trace that the format cannot hold.
    """
    path = Path(path)
    name = format or by_extension(path)
    if name not in WRITERS:
        raise TraceError(f"format {name!r} cannot be written. Choose {', '.join(WRITERS)}.")
    writer = WRITERS[name]
    compression = COMPRESSED.get(path.suffix)
    if name == "parquet" and compression:
        raise TraceError(f"{path}: Parquet is compressed already. Leave {path.suffix} out.")
    lost = [
        column
        for column in ("priority", "tenant", "hashes")
        if getattr(trace, column) is not None and column not in writer.holds
    ]
    if trace.hashes is not None and writer.block_tokens is not None:
        trace = reblock(trace, writer.block_tokens)
    with _sink(path, compression) as sink:
        writer.write(trace, sink)
    return trace.noted(*(f"{name} has no {column}: left out" for column in lost))


def by_extension(path: Path) -> str:
    """The native format that a file name asks for.

    Raises:
        TraceError: another extension.
    """
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix
    name = {".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet"}.get(suffix)
    if name is None:
        raise TraceError(
            f"{path}: the extension names no format. Use .csv, .jsonl or .parquet "
            "(.csv.gz, .jsonl.zst, …), or name a format."
        )
    return name


@contextmanager
def _sink(path: Path, compression: str | None) -> Iterator[Any]:
    """An Arrow stream to a temporary name, which becomes `path` when all went well."""
    import pyarrow as pa

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with pa.OSFile(os.fspath(temporary), "wb") as file:
            if compression:
                with pa.CompressedOutputStream(file, compression) as stream:
                    yield stream
            else:
                yield file
        temporary.replace(path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error}).") from error
    finally:
        temporary.unlink(missing_ok=True)


def _csv(columns: dict[str, Any], sink: Any) -> None:
    """Columns (arrays, or one value for all rows) as CSV; floats to their last digit."""
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    rows = max(len(c) for c in columns.values() if isinstance(c, np.ndarray))
    arrays = [
        pa.array(c) if isinstance(c, np.ndarray) else pa.repeat(c, rows) for c in columns.values()
    ]
    sink.write((",".join(columns) + "\n").encode())
    # The header is written above: Arrow would quote its names.
    options = arrow_csv.WriteOptions(include_header=False, quoting_style="needed")
    arrow_csv.write_csv(pa.table(arrays, names=list(columns)), sink, options)


def _jsonl(columns: dict[str, Any], sink: Any) -> None:
    """Columns (arrays, hashes, or one value for all rows) as JSON lines."""
    rows = max(len(c) for c in columns.values() if isinstance(c, np.ndarray))
    for first in range(0, rows, _ROWS):
        parts = []
        for column in columns.values():
            last = min(first + _ROWS, rows)
            if isinstance(column, np.ndarray):
                parts.append(column[first:last].tolist())
            elif isinstance(column, BlockHashes):
                parts.append([column.row(i).tolist() for i in range(first, last)])
            else:
                parts.append([column] * (last - first))
        lines = (
            json.dumps(dict(zip(columns, row, strict=True))) for row in zip(*parts, strict=True)
        )
        sink.write(("\n".join(lines) + "\n").encode())


def _native(trace: Trace) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "arrival_s": trace.arrival_s,
        "prompt_tokens": trace.prompt_tokens,
        "output_tokens": trace.output_tokens,
    }
    if trace.priority is not None:
        columns["priority"] = trace.priority
    if trace.tenant is not None:
        columns["tenant"] = trace.tenant
    return columns


def _write_csv(trace: Trace, sink: Any) -> None:
    columns = _native(trace)
    if trace.hashes is not None:
        rows = (trace.hashes.row(i).tolist() for i in range(len(trace)))
        columns["hash_ids"] = np.array([" ".join(map(str, row)) for row in rows], object)
        columns["block_tokens"] = np.full(len(trace), trace.hashes.block_tokens)
    _csv(columns, sink)


def _write_jsonl(trace: Trace, sink: Any) -> None:
    columns = _native(trace)
    if trace.hashes is not None:
        columns |= {"hash_ids": trace.hashes, "block_tokens": trace.hashes.block_tokens}
    _jsonl(columns, sink)


def _write_parquet(trace: Trace, sink: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: pa.array(column) for name, column in _native(trace).items()}
    if trace.hashes is not None:
        columns["hash_ids"] = pa.LargeListArray.from_arrays(
            pa.array(trace.hashes.offsets), pa.array(trace.hashes.ids)
        )
        columns["block_tokens"] = pa.array(np.full(len(trace), trace.hashes.block_tokens))
    pq.write_table(pa.table(columns), sink, compression="zstd")


def _write_azure(trace: Trace, sink: Any) -> None:
    ticks = np.rint(trace.arrival_s * 1e7).astype(np.int64)
    stamps = np.datetime_as_string(_START + (ticks * 100).astype("timedelta64[ns]"))
    # 2024-01-01T00:00:00.000000000 loses its last two digits: Azure's stamps have seven.
    text = np.array([f"{s[:10]} {s[11:27]}" for s in stamps], object)
    columns = {
        "TIMESTAMP": text,
        "ContextTokens": trace.prompt_tokens,
        "GeneratedTokens": trace.output_tokens,
    }
    _csv(columns, sink)


def _write_burstgpt(trace: Trace, sink: Any) -> None:
    empty = int(np.count_nonzero(trace.output_tokens == 0))
    if empty:
        raise TraceError(
            f"{trace.name}: {empty:,} requests have 0 output tokens, which BurstGPT's format reads "
            "as failed. Cut them out, or choose another format."
        )
    columns = {
        "Timestamp": trace.arrival_s,
        "Model": "unknown",
        "Request tokens": trace.prompt_tokens,
        "Response tokens": trace.output_tokens,
        "Total tokens": trace.prompt_tokens + trace.output_tokens,
        "Log Type": "API log",
    }
    _csv(columns, sink)


def _write_vidur(trace: Trace, sink: Any) -> None:
    columns = {
        "arrived_at": trace.arrival_s,
        "num_prefill_tokens": trace.prompt_tokens,
        "num_decode_tokens": trace.output_tokens,
    }
    _csv(columns, sink)


def _write_splitwise(trace: Trace, sink: Any) -> None:
    columns = {
        "request_id": np.arange(len(trace)),
        "request_type": 2,
        "application_id": 0,
        "arrival_timestamp": trace.arrival_s,
        "batch_size": 1,
        "prompt_size": trace.prompt_tokens,
        "token_size": trace.output_tokens,
    }
    _csv(columns, sink)


def _lengths(trace: Trace, timestamp: NDArray[Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "timestamp": timestamp,
        "input_length": trace.prompt_tokens,
        "output_length": trace.output_tokens,
    }
    return columns if trace.hashes is None else {**columns, "hash_ids": trace.hashes}


def _write_mooncake(trace: Trace, sink: Any) -> None:
    ms = trace.arrival_s * 1000
    # Whole milliseconds where they are, as in Mooncake's files; fractions rather than a loss.
    whole = bool(np.all(np.abs(ms - np.rint(ms)) < 1e-6))
    _jsonl(_lengths(trace, np.rint(ms).astype(np.int64) if whole else ms), sink)


def _write_qwen(trace: Trace, sink: Any) -> None:
    columns = {
        "chat_id": np.arange(len(trace)),
        "parent_chat_id": -1,
        **_lengths(trace, trace.arrival_s),
        "type": "text",
        "turn": 1,
    }
    _jsonl(columns, sink)


def _write_timed_trace(trace: Trace, sink: Any) -> None:
    columns = _lengths(trace, trace.arrival_s)
    if trace.hashes is None:
        # vLLM builds prompts from hash ids, so there must be some: each its own, nothing shared.
        offsets = np.concatenate([[0], np.cumsum(-(-trace.prompt_tokens // 16))])
        columns["hash_ids"] = BlockHashes(np.arange(offsets[-1]), offsets, 16)
    _jsonl(columns, sink)


def _write_llmservingsim(trace: Trace, sink: Any) -> None:
    columns = {
        "input_toks": trace.prompt_tokens,
        "output_toks": trace.output_tokens,
        "arrival_time_ns": np.rint(trace.arrival_s * 1e9).astype(np.int64),
    }
    _jsonl(columns, sink)


_ALL = frozenset({"priority", "tenant", "hashes"})
_HASHES = frozenset({"hashes"})
WRITERS = {
    "csv": Writer(".csv", _write_csv, _ALL),
    "jsonl": Writer(".jsonl", _write_jsonl, _ALL),
    "parquet": Writer(".parquet", _write_parquet, _ALL),
    "azure": Writer(".csv", _write_azure),
    "burstgpt": Writer(".csv", _write_burstgpt),
    "vidur": Writer(".csv", _write_vidur),
    "splitwise": Writer(".csv", _write_splitwise),
    "mooncake": Writer(".jsonl", _write_mooncake, _HASHES, 512),
    "qwen-bailian": Writer(".jsonl", _write_qwen, _HASHES, 16),
    "vllm-timed-trace": Writer(".jsonl", _write_timed_trace, _HASHES, 16),
    "llmservingsim": Writer(".jsonl", _write_llmservingsim),
}
"""By the names of `traces.formats`."""
