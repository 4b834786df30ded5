"""Files as bytes: compressed, marked, cut short, or made to explode."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

import pytest
import zstandard

from tests.traces.files import assert_columns, put
from traces import TraceError, load
from traces import source as source_module

TEXT = b"arrival_s,prompt_tokens,output_tokens\n0,10,1\n1,20,2\n"


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_compressed_files_are_known_by_content_whatever_their_name(
    tmp_path: Path, compress: object
) -> None:
    assert callable(compress)
    path = put(tmp_path, "t.csv", compress(TEXT))
    assert_columns(load(path), [0, 1], [10, 20], [1, 2])
    # Several members, one after the other, as `cat a.gz b.gz` makes them.
    path = put(tmp_path, "two.gz", compress(TEXT) + compress(b"2,30,3\n"))
    assert_columns(load(path), [0, 1, 2], [10, 20, 30], [1, 2, 3])
    whole = compress(TEXT * 1 + os.urandom(4000).hex().encode())
    with pytest.raises(TraceError, match=r"damaged or cut short"):
        load(put(tmp_path, "cut.gz", whole[: len(whole) // 2]))


def test_marks_and_line_ends(tmp_path: Path) -> None:
    for content in (
        b"\xef\xbb\xbf" + TEXT,
        TEXT.replace(b"\n", b"\r\n"),
        TEXT.rstrip(b"\n"),
        TEXT.replace(b"\n", b"\r\n").rstrip(b"\r\n"),
        TEXT + b"\n\n",
        TEXT.replace(b"\n1", b"\n\n1"),
        b"\xef\xbb\xbf" + gzip.compress(TEXT)[:0] + TEXT,
    ):
        assert_columns(load(put(tmp_path, "t.csv", content)), [0, 1], [10, 20], [1, 2])
    with pytest.raises(TraceError, match=r"UTF-16 text. Save it as UTF-8"):
        load(put(tmp_path, "t.csv", TEXT.decode().encode("utf-16")))


def test_lines_are_counted_across_blocks_and_blank_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "BLOCK", 64)
    rows = b"".join(b"%d,10,1\n" % i + b"\n" * (i % 3 == 0) for i in range(100))
    path = put(tmp_path, "t.csv", TEXT[: TEXT.index(b"\n") + 1] + rows)
    assert load(path).arrival_s.tolist() == list(range(100))
    bad = path.read_bytes().replace(b"\n77,10", b"\n77,ten")
    line = bad[: bad.index(b"77,ten")].count(b"\n") + 1
    with pytest.raises(TraceError, match=f"line {line}, column prompt_tokens: 'ten'"):
        load(put(tmp_path, "bad.csv", bad))


def test_bombs_are_refused_within_bounded_memory(tmp_path: Path) -> None:
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    line = b" " * 999 + b"\n"
    bomb = deflate.compress(TEXT)
    bomb += b"".join(deflate.compress(line * 1000) for _ in range(100)) + deflate.flush()
    path = put(tmp_path, "bomb.csv.gz", bomb)
    assert path.stat().st_size < 200_000
    with pytest.raises(TraceError, match=r"refused as a decompression bomb"):
        load(path)
    one_line = zstandard.compress(b"[" * 30_000_000)
    with pytest.raises(TraceError, match=r"longer than 16 MiB"):
        load(put(tmp_path, "bomb.jsonl.zst", one_line), format="jsonl")
    with pytest.raises(TraceError, match=r"refused as a decompression bomb"):
        load(put(tmp_path, "d.json", zstandard.compress(b" " * 70_000_000)), format="vllm-bench")


def test_a_parquet_file_that_claims_too_many_rows_is_refused(tmp_path: Path) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "bomb.parquet"
    columns = {
        "arrival_s": np.zeros(21_000_000, np.int8),
        "prompt_tokens": np.ones(21_000_000, np.int8),
        "output_tokens": np.ones(21_000_000, np.int8),
    }
    pq.write_table(pa.table(columns), path)
    with pytest.raises(TraceError, match=r"claim 21,000,000 rows; refused"):
        load(path)


def test_what_is_not_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(TraceError, match=r"not a file"):
        load(pipe)
    path = put(tmp_path, "t.parquet", b"PAR1 and then nothing of the kind")
    with pytest.raises(TraceError, match=r"not a Parquet file that can be read"):
        load(path)
    with pytest.raises(TraceError, match=r"Decompress it first"):
        load(put(tmp_path, "t.gz", gzip.compress(b"PAR1....PAR1")))
