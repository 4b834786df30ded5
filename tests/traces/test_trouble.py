"""Trouble in files: one policy in all readers, an error that says where, or a skip."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from tests.traces.files import assert_columns, lines, put, said
from traces import TraceError, load

HEADER = "arrival_s,prompt_tokens,output_tokens\n"
GOOD = "0,10,1\n1,20,2\n"

BAD_ROWS = {
    "abc": ("2,abc,3", "prompt_tokens", "'abc' is not a number"),
    "empty": ("2,,3", "prompt_tokens", "'' is empty"),
    "fraction": ("2,10.5,3", "prompt_tokens", "'10.5' is not a whole number"),
    "thousands": ('2,"1,024",3', "prompt_tokens", "'1,024' has thousands separators. Write 1024"),
    "underscore": ("2,1_024,3", "prompt_tokens", "has thousands separators. Write 1024"),
    "hexadecimal": ("2,0x10,3", "prompt_tokens", "'0x10' is not a number"),
    "NaN count": ("2,nan,3", "prompt_tokens", "'nan' is not a finite number"),
    "NaN time": ("nan,10,3", "arrival_s", "'nan' is not a finite number"),
    "inf": ("inf,10,3", "arrival_s", "'inf' is not a finite number"),
    "-inf": ("-inf,10,3", "arrival_s", "'-inf' is not a finite number"),
    "overflow": ("1e400,10,3", "arrival_s", "too large"),
    "1e18 tokens": ("2,1000000000000000000,3", "prompt_tokens", "over 10^9 tokens"),
    "1e18 as a float": ("2,1e18,3", "prompt_tokens", "over 10^9 tokens"),
    "2^64": ("2,18446744073709551616,3", "prompt_tokens", "too large"),
    "10^30": ("2,1000000000000000000000000000000,3", "prompt_tokens", "too large"),
    "negative time": ("-0.5,10,3", "arrival_s", "-0.5 is negative"),
    "milliseconds": ("1700000000000,10,3", "arrival_s", "too late for this column's unit"),
    "no prompt": ("2,0,3", "prompt_tokens", "0 is below 1"),
    "negative output": ("2,10,-3", "output_tokens", "-3 is negative"),
    "NUL": ("2,1\x000,3", "prompt_tokens", "is not a number"),
    "other digits": ("2,\u0663,3", "prompt_tokens", "is not a number"),
    "two signs": ("2,+-3,3", "prompt_tokens", "is not a number"),
    "too few cells": ("2,10", "(whole line)", "has 2 cells where the header names 3"),
    "too many cells": ("2,10,3,4", "(whole line)", "has 4 cells where the header names 3"),
    "open quote": ('2,"10,3', "(whole line)", "is not CSV"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_an_error_that_says_where(tmp_path: Path, case: str) -> None:
    row, column, problem = BAD_ROWS[case]
    path = put(tmp_path, "t.csv", HEADER + GOOD + row + "\n" + "3,30,3\n")
    with pytest.raises(TraceError) as caught:
        load(path)
    error = caught.value
    assert problem in str(error)
    assert f"{path}, line 4, column {column}: " in str(error)
    assert "--on-bad-row skip" in str(error)
    assert (error.file, error.line, error.column) == (str(path), 4, column)
    assert error.value
    assert error.fix


@pytest.mark.parametrize("case", BAD_ROWS)
def test_skip_leaves_it_out_counts_it_and_lists_it(tmp_path: Path, case: str) -> None:
    row, column, _ = BAD_ROWS[case]
    path = put(tmp_path, "t.csv", HEADER + GOOD + row + "\n" + "3,30,3\n")
    side = tmp_path / "bad.csv"
    trace = load(path, on_bad_row="skip", bad_rows=side)
    assert_columns(trace, [0, 1, 3], [10, 20, 30], [1, 2, 3])
    assert said(trace, f"1 bad row skipped, listed in {side}")
    listed = list(csv.DictReader(side.open()))
    assert [(entry["line"], entry["column"]) for entry in listed] == [("4", column)]


def test_no_side_file_without_bad_rows_and_a_name_of_its_own_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    load(put(tmp_path, "t.csv", HEADER + GOOD), on_bad_row="skip")
    assert not list(tmp_path.glob("*bad-rows*"))
    load(put(tmp_path, "t.csv", HEADER + GOOD + "x,1,1\n"), on_bad_row="skip")
    assert (tmp_path / "t.csv.bad-rows.csv").exists()
    with pytest.raises(TraceError, match=r"bad rows cannot be listed there"):
        load(tmp_path / "t.csv", on_bad_row="skip", bad_rows=tmp_path / "no" / "folder.csv")
    with pytest.raises(TraceError, match=r"on_bad_row must be"):
        load(tmp_path / "t.csv", on_bad_row="ignore")  # pyright: ignore


def test_only_bad_rows_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = put(tmp_path, "t.csv", HEADER + "x,1,1\n")
    with pytest.raises(TraceError, match=r"no usable request.*1 bad row skipped"):
        load(path, on_bad_row="skip", bad_rows=tmp_path / "bad.csv")


JSON_ROWS = {
    "text": ({"prompt_tokens": "12"}, "is text where a number belongs. Write it without quotes"),
    "true": ({"prompt_tokens": True}, "is not a number"),
    "null": ({"prompt_tokens": None}, "is not a number"),
    "fraction": ({"prompt_tokens": 1.5}, "is not a whole number"),
    "NaN": ({"arrival_s": float("nan")}, "is not a finite number"),
    "Infinity": ({"arrival_s": float("inf")}, "is not a finite number"),
    "huge": ({"arrival_s": 10**400}, "is not a finite number"),
    "list": ({"arrival_s": []}, "is not a number"),
    "2^70": ({"output_tokens": 2**70}, "is too large"),
}


@pytest.mark.parametrize("case", JSON_ROWS)
def test_bad_json_values_name_line_and_key(tmp_path: Path, case: str) -> None:
    change, problem = JSON_ROWS[case]
    good = {"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}
    path = put(tmp_path, "t.jsonl", lines(good, good) + "\n" + lines(good | change, good))
    with pytest.raises(TraceError, match=f"line 4, column {next(iter(change))}") as caught:
        load(path)
    assert problem in str(caught.value)
    trace = load(path, on_bad_row="skip", bad_rows=tmp_path / "bad.csv")
    assert len(trace) == 3


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is not JSON"),
        ("[1, 2]", "is not a JSON object"),
        ('{"a": ' + "[" * 100_000, "is nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "is not JSON that can be read"),
        ('{"arrival_s": 1, "output_tokens": 1, "promt_tokens": 3}', "nearest there is 'promt_tok"),
    ],
)
def test_bad_json_lines(tmp_path: Path, line: str, problem: str) -> None:
    good = {"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}
    path = put(tmp_path, "t.jsonl", lines(good) + line + "\n" + lines(good))
    with pytest.raises(TraceError, match=r"line 2") as caught:
        load(path)
    assert problem in str(caught.value)
    assert len(load(path, on_bad_row="skip", bad_rows=tmp_path / "bad.csv")) == 2


def test_json_that_is_not_utf8(tmp_path: Path) -> None:
    good = lines({"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}).encode()
    path = put(tmp_path, "t.jsonl", good + b'{"arrival_s": "\xff"}\n')
    with pytest.raises(TraceError, match=r"line 2.*is not UTF-8"):
        load(path)


def test_bad_parquet_values_name_the_row(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    table = {
        "arrival_s": [0.0, 1.0, 2.0],
        "prompt_tokens": [1, 2, 3],
        "output_tokens": [1, None, 1],
    }
    pq.write_table(pa.table(table), path)
    with pytest.raises(TraceError, match=r"row 2, column output_tokens: null"):
        load(path)
    assert len(load(path, on_bad_row="skip", bad_rows=tmp_path / "bad.csv")) == 2
    pq.write_table(pa.table(table | {"output_tokens": ["1", "2", "3"]}), path)
    with pytest.raises(TraceError, match=r"row 1, column output_tokens.*is text"):
        load(path)
    pq.write_table(pa.table(table | {"output_tokens": [1.0, 2.5, 3.0]}), path)
    with pytest.raises(TraceError, match=r"row 2, column output_tokens: 2.5 is not a whole"):
        load(path)
    pq.write_table(pa.table(table | {"output_tokens": pa.array([1, 2, 2**63], pa.uint64())}), path)
    with pytest.raises(TraceError, match=r"row 3, column output_tokens.*too large"):
        load(path)


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize(
    ("stamp", "problem"),
    [
        ("yesterday", "is not a date and time"),
        ("", "is empty"),
        ("2023-13-01 00:00:00", "is not a date and time"),
        ("2023-11-16 25:00:00", "is not a date and time"),
        ("9999-01-01 00:00:00", "outside the years"),
        ("1900-01-01 00:00:00", "outside the years"),
        ("1700000000", "is not a date and time"),
        ("2023-11-16 00:00:00+00:00", "differs from the timestamps before it"),
    ],
)
def test_bad_timestamps(tmp_path: Path, stamp: str, problem: str) -> None:
    path = put(tmp_path, "a.csv", AZURE + f"2023-11-16 00:00:00.5,1,1\n{stamp},1,1\n")
    with pytest.raises(TraceError, match=r"line 3, column TIMESTAMP") as caught:
        load(path)
    assert problem in str(caught.value)


def test_hash_ids_that_do_not_fit_their_prompt_name_the_line(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}
    path = put(tmp_path, "m.jsonl", lines(row, row | {"hash_ids": [1, 2, 3]}, row))
    with pytest.raises(TraceError, match=r"line 2, column hash_ids: 3 ids do not fit"):
        load(path)
    assert len(load(path, on_bad_row="skip", bad_rows=tmp_path / "bad.csv")) == 2
    path = put(tmp_path, "m.jsonl", lines(row, row | {"hash_ids": "12"}))
    with pytest.raises(TraceError, match=r"line 2, column hash_ids: '12' is not a list"):
        load(path)
    path = put(tmp_path, "m.jsonl", lines(row, row | {"hash_ids": [1, 2.5]}))
    with pytest.raises(TraceError, match=r"is not a list of whole numbers"):
        load(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("arrival,prompt_tokens,output_tokens", "no known trace format"),
        ("a,b,c", "it has a first line with 'a', 'b', 'c'"),
        ("", "no known trace format"),
    ],
)
def test_a_wrong_header_says_what_there_is(tmp_path: Path, header: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        load(put(tmp_path, "t.csv", header + "\n1,2,3\n"))


def test_a_missing_column_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = put(tmp_path, "t.csv", "arrival_s,promt_tokens,output_tokens\n0,1,1\n")
    with pytest.raises(TraceError) as caught:
        load(path, format="csv")
    assert "line 1, column prompt_tokens: missing. The nearest there is 'promt_tokens'" in str(
        caught.value
    )
    path = put(tmp_path, "u.csv", "arrival_s,prompt_tokens,output_tokens,PROMPT_TOKENS\n0,1,1,1\n")
    with pytest.raises(TraceError, match=r"column prompt_tokens: named 2 times"):
        load(path)


@pytest.mark.parametrize("content", ["", "\ufeff", "arrival_s,prompt_tokens,output_tokens\n", "\n"])
def test_an_empty_file_is_an_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(TraceError):
        load(put(tmp_path, "t.csv", content))


def test_unsorted_rows_are_sorted_and_said_equal_times_keep_their_order(tmp_path: Path) -> None:
    path = put(tmp_path, "t.csv", HEADER + "2,1,1\n0.5,2,1\n2,3,1\n0,4,1\n")
    trace = load(path)
    assert_columns(trace, [0, 0.5, 2, 2], [4, 2, 1, 3], [1, 1, 1, 1])
    assert said(trace, "sorted (3 of 4 moved)")


def test_clocks_are_rebased_and_said(tmp_path: Path) -> None:
    trace = load(put(tmp_path, "t.csv", HEADER + "1700000000.25,1,1\n1700000001.75,1,1\n"))
    assert trace.arrival_s.tolist() == [0, 1.5]
    assert said(trace, "clock rebased: 2023-11-14 22:13:20 UTC is 0")
    trace = load(put(tmp_path, "t.csv", HEADER + "12.5,1,1\n13,1,1\n"))
    assert trace.arrival_s.tolist() == [0, 0.5]
    assert said(trace, "moved by 12.5 s")


def test_whole_second_ties_are_said_and_spread_within_the_second(tmp_path: Path) -> None:
    times = np.repeat(np.arange(50), 4)
    rows = "".join(f"{t},{i + 1},1\n" for i, t in enumerate(times))
    path = put(tmp_path, "t.csv", HEADER + rows)
    trace = load(path)
    assert said(trace, "200 of 200 requests share their arrival time")
    assert said(trace, "at least 1 s apart (times are whole seconds); --spread-ties")
    spread = load(path, spread_ties=True, seed=1)
    assert said(spread, "ties spread within 1 s, seed 1")
    assert spread.arrival_s[0] == 0
    assert len(np.unique(spread.arrival_s)) == 200
    # The file's order is kept and no request leaves its second (all moved alike to start at 0).
    assert spread.prompt_tokens.tolist() == list(range(1, 201))
    shift = (spread.arrival_s - times).min()
    assert np.all(spread.arrival_s - times - shift < 1)
    again = load(path, spread_ties=True, seed=1)
    assert again.arrival_s.tolist() == spread.arrival_s.tolist()
    other = load(path, spread_ties=True, seed=2)
    assert other.arrival_s.tolist() != spread.arrival_s.tolist()


def test_spreading_needs_a_tick(tmp_path: Path) -> None:
    trace = load(put(tmp_path, "t.csv", HEADER + "0,1,1\n0,1,1\n"), spread_ties=True)
    assert trace.arrival_s.tolist() == [0, 0]
    assert said(trace, "no tick to spread within")


def test_limit_takes_the_first_after_sorting_and_rate_scale_divides_times(tmp_path: Path) -> None:
    path = put(tmp_path, "t.csv", HEADER + "4,1,1\n0,2,1\n2,3,1\n")
    assert_columns(load(path, limit=2, rate_scale=4), [0, 0.5], [2, 3], [1, 1])
    assert len(load(path, limit=99)) == 3
    with pytest.raises(TraceError, match=r"limit must be at least 1"):
        load(path, limit=0)
    for scale in (0, -1, float("nan"), float("inf")):
        with pytest.raises(TraceError, match=r"rate scale"):
            load(path, rate_scale=scale)


def test_names_that_are_neither_file_nor_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, "trace.csv", HEADER + GOOD)
    with pytest.raises(TraceError, match=r"Nearest: trace.csv"):
        load("trase.csv")
    with pytest.raises(TraceError, match=r"Nearest: chat"):
        load("chatt")
    with pytest.raises(TraceError, match=r"has no --format"):
        load("chat", format="csv")
    put(tmp_path, "chat", HEADER + GOOD)
    assert len(load("chat")) == 2, "an existing file wins over a workload of its name"
