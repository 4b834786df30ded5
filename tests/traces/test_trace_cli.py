"""The commands: what they print, what they write, and how they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lengthwise.trace_cli import app
from tests.traces.files import put
from tests.traces.test_write import made
from traces import load
from traces.write import write

HEADER = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: object, code: int = 0) -> str:
    """The standard output of a command that ends with `code`."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def fails(*arguments: object) -> str:
    """The message of a command that fails as promised: exit code 2, stderr, no traceback."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("lengthwise: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_describe_json_is_one_document_with_the_promised_names(tmp_path: Path) -> None:
    write(made(2000), tmp_path / "t.jsonl")
    figures = json.loads(run("describe", "t.jsonl", "--json"))
    trace = load("t.jsonl")
    assert figures["requests"] == 2000
    assert figures["total_prompt_tokens"] == int(trace.prompt_tokens.sum())
    assert figures["total_output_tokens"] == int(trace.output_tokens.sum())
    assert figures["span_s"] == trace.span_s
    assert figures["mean_rate"] == pytest.approx(1999 / trace.span_s)
    assert not list(tmp_path.glob("*.png")), "nothing but the document"


def test_describe_prints_a_table_and_saves_the_page(tmp_path: Path) -> None:
    write(made(300), tmp_path / "my.trace.csv")
    text = run("describe", "my.trace.csv")
    assert "300" in text
    assert "shared prefixes" in text
    assert "Note: read as csv" in text
    assert (tmp_path / "my-describe.png").exists()
    run("describe", "chat", "--limit", 50, "--no-plot")
    assert not (tmp_path / "chat-describe.png").exists()
    put(tmp_path, "one.csv", HEADER + "0,5,0\n")
    assert "CV of gaps" not in run("describe", "one.csv")


def test_check_says_every_bad_row_by_its_exit_code(tmp_path: Path) -> None:
    put(tmp_path, "good.csv", HEADER + "0,1,1\n")
    put(tmp_path, "bad.csv", HEADER + "0,1,1\nx,1,1\n1,1,1\n2,0,1\n")
    put(tmp_path, "worse.csv", HEADER + "x,1,1\n" * 30 + "0,1,1\n")
    put(tmp_path, "none.csv", "a,b\n1,2\n")
    assert "1 good requests, no bad row" in run("check", "good.csv")
    text = run("check", "bad.csv", code=1)
    assert "line 3, column arrival_s: 'x'" in text
    assert "line 5, column prompt_tokens: 0 is below 1" in text
    assert "2 good requests, 2 bad rows" in text
    document = json.loads(run("check", "bad.csv", "--json", code=1))
    assert document["ok"] is False
    assert document["bad_rows"] == 2
    assert "and 10 more" in run("check", "worse.csv", code=1)
    assert "no known trace format" in fails("check", "none.csv")
    assert "no such file" in fails("describe", "nothing.csv")
    assert not list(tmp_path.glob("*bad-rows*"))


def test_convert_names_its_file_and_never_overwrites(tmp_path: Path) -> None:
    write(made(40), tmp_path / "t.csv")
    assert "t.azure.csv: 40 requests" in run("convert", "t.csv", "--to", "azure")
    assert "Note: azure has no tenant: left out" in run(
        "convert", "t.csv", "--to", "azure", "--force"
    )
    assert len(load("t.azure.csv")) == 40
    assert "exists" in fails("convert", "t.csv", "--to", "azure")
    assert "exists" in fails("convert", "t.csv", "--to", "csv")
    run("convert", "t.csv", "--to", "parquet", "--limit", 7)
    assert len(load("t.parquet")) == 7
    document = json.loads(run("convert", "t.csv", "--out", "u.jsonl.gz", "--json"))
    assert document["requests"] == 40
    assert document["out"] == "u.jsonl.gz"
    assert "give --to FORMAT" in fails("convert", "t.csv")
    assert "cannot be written" in fails("convert", "t.csv", "--to", "aiperf")


def test_skipped_rows_are_said_by_convert(tmp_path: Path) -> None:
    put(tmp_path, "bad.csv", HEADER + "0,1,1\nx,1,1\n1,1,1\n")
    assert "line 3" in fails("convert", "bad.csv", "--to", "jsonl")
    text = run("convert", "bad.csv", "--to", "jsonl", "--on-bad-row", "skip")
    assert "1 bad row skipped, listed in bad.csv.bad-rows.csv" in text
    assert (tmp_path / "bad.csv.bad-rows.csv").read_text().startswith("line,column,value,problem")


def test_cut_scale_and_merge(tmp_path: Path) -> None:
    put(tmp_path, "t.csv", HEADER + "".join(f"{i},10,{i}\n" for i in range(100)))
    run("cut", "t.csv", "--start", 10, "--end", 60, "--first", 20, "--out", "cut.csv")
    assert load("cut.csv").output_tokens.tolist() == list(range(10, 30))
    run("cut", "t.csv", "--sample", 0.5, "--seed", 3, "--out", "half.csv")
    assert 30 < len(load("half.csv")) < 70
    run("scale", "t.csv", "--rate", 4, "--prompt", 2.5, "--out", "fast.parquet")
    fast = load("fast.parquet")
    assert fast.span_s == 99 / 4
    assert set(fast.prompt_tokens.tolist()) == {25}
    run("merge", "cut.csv", "fast.parquet", "--out", "both.jsonl")
    both = load("both.jsonl")
    assert len(both) == 120
    assert both.tenant is not None
    assert set(both.tenant) == {"cut.csv", "fast.parquet"}
    assert "nothing to cut" in fails("cut", "t.csv", "--out", "x.csv")
    assert "rate scale" in fails("scale", "t.csv", "--rate", 0, "--out", "x.csv")


def test_generate_from_flags(tmp_path: Path) -> None:
    flags = (
        "--requests 500 --arrivals gamma:2 --rate 5 --prompt lognormal:1000:0.9 --output fixed:7"
    )
    run("generate", *flags.split(), "--seed", 1, "--out", "a.csv")
    run("generate", *flags.split(), "--seed", 1, "--out", "b.jsonl")
    run("generate", *flags.split(), "--seed", 2, "--out", "c.parquet")
    a, b, c = load("a.csv"), load("b.jsonl"), load("c.parquet")
    assert len(a) == 500
    assert a.arrival_s.tolist() == b.arrival_s.tolist()
    assert a.prompt_tokens.tolist() == b.prompt_tokens.tolist()
    assert c.prompt_tokens.tolist() != a.prompt_tokens.tolist()
    assert set(a.output_tokens.tolist()) == {7}
    run("generate", "--duration", 100, "--rate", 2, "--joint", "a.csv", "--out", "d.csv")
    assert 150 < len(load("d.csv")) < 250
    assert "give --prompt and --output" in fails("generate", "--rate", 1, "--out", "x.csv")
    assert "rate: missing" in fails(
        "generate", "--requests", 5, "--joint", "a.csv", "--out", "x.csv"
    )
    assert "extension names no format" in fails("generate", *flags.split(), "--out", "x.txt")
    assert not (tmp_path / "x.csv").exists()


def test_fit_and_generate_from_its_spec(tmp_path: Path) -> None:
    write(load("chat", limit=3000), tmp_path / "t.csv")
    assert "spec.yaml: a spec of 1 tenant" in run("fit", "t.csv", "--out", "spec.yaml")
    assert "exists" in fails("fit", "t.csv", "--out", "spec.yaml")
    assert (
        json.loads(run("fit", "t.csv", "--out", "spec.yaml", "--force", "--json"))["tenants"] == 1
    )
    run("generate", "--spec", "spec.yaml", "--out", "like.csv")
    assert len(load("like.csv")) == 3000
    run("generate", "--spec", "spec.yaml", "--requests", 100, "--seed", 9, "--out", "less.csv")
    assert len(load("less.csv")) == 100
    message = fails("generate", "--spec", "spec.yaml", "--rate", 3, "--out", "x.csv")
    assert "--spec already says what --rate would" in message
