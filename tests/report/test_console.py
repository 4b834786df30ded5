"""Tables that people read: nothing cut off, nothing taken for markup, every figure there."""

from __future__ import annotations

import io
import re

import pandas as pd
import pytest
from rich.console import Console, RenderableType

from lengthwise.console import (
    compare_table,
    latency_unit,
    make_console,
    number,
    percent,
    progress,
    refusals,
    replay_table,
)
from serving.record import Record
from tests.report.toy import toy

DRAIN = ("static", "dynamic-padding", "bucketing", "token-aware")
POLICIES = (*DRAIN, "continuous", "chunked-prefill")


def text(renderable: RenderableType, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    return "\n".join(line.rstrip() for line in lines)


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {
        name: toy(i, requests=30, padded=i < 4, config={"policy": name}).record
        for i, name in enumerate(POLICIES)
    }


@pytest.mark.parametrize("width", [80, 120])
def test_replay_table_shows_every_figure(records: dict[str, Record], width: int) -> None:
    record = records["bucketing"]
    s, shown = record.summary, text(replay_table(record), width)
    assert "…" not in shown
    assert "31 in, 30 finished, 1 refused" in shown
    for key in ("request_throughput", "output_throughput", "total_token_throughput", "duration"):
        assert number(s[key]) in shown
    for label, name in (
        ("TTFT", "ttft"),
        ("TPOT", "tpot"),
        ("ITL", "itl"),
        ("E2E", "e2el"),
        ("Queue", "queue"),
    ):
        figures = [number(s[f"{f}_{name}_ms"]) for f in ("mean", "median", "p90", "p99")]
        row = rf"{label} \(ms\) +{' +'.join(map(re.escape, figures))}"
        assert re.search(row, shown), row
    padding = [percent(s[f"{phase}padding_ratio"]) for phase in ("prefill_", "decode_", "")]
    assert re.search(rf"Padding ratio +{' +'.join(padding)}", shown)
    assert re.search(rf"Attention efficiency.* {percent(s['attention_efficiency'])}", shown)
    for fact in (
        f"KV blocks in use +mean {percent(s['kv_mean_fraction'])}, peak",
        f"Preemptions +{s['preemptions']}",
        f"fill {percent(s['budget_use'])} of 64",
        f"MFU {percent(s['mfu'])}, memory bandwidth {percent(s['mbu'])}",
    ):
        assert re.search(fact, shown), fact


def test_replay_table_without_model_budget_or_anything_finished() -> None:
    record = toy(1, config={"max_num_batched_tokens": None, "kv_blocks": None}).record
    config = {"policy": "[red]mine[/red]"}
    shown = text(replay_table(Record(config, record.requests, record.steps, record.events)), 80)
    assert "[red]mine[/red]" in shown
    assert "unlimited" in shown
    assert "MFU" not in shown
    nothing = Record(config, record.requests[:0], record.steps[:0], record.events[:0])
    assert "0 in, 0 finished, 0 refused" in text(replay_table(nothing), 80)
    assert "TTFT (ms)" in text(replay_table(nothing), 80)
    stopped = toy(1, steps=20, config={"goodput": {"ttft": 1e9}, "enable_prefix_caching": True})
    shown = text(replay_table(stopped.record), 80)
    assert "unfinished" in shown
    assert "Goodput" in shown
    assert "Prefix cache hits" in shown


@pytest.mark.parametrize("width", [80, 100, 120, 240])
def test_compare_table_gives_up_columns_not_figures(records: dict[str, Record], width: int) -> None:
    shown = text(compare_table(records), width)
    assert "…" not in shown
    rows = [line for line in shown.splitlines() if line.strip().startswith(POLICIES)]
    assert [row.split()[0] for row in rows] == list(POLICIES)
    for row, record in zip(rows, records.values(), strict=True):
        for key in ("p99_ttft_ms", "p99_itl_ms", "p99_e2el_ms", "output_throughput"):
            assert number(record.summary[key]) in row.split()
        assert percent(record.summary["padding_ratio"]) in row.split()
    assert ("On a wider screen also" in shown) == (width < 240)


def test_compare_table_takes_names_as_text(records: dict[str, Record]) -> None:
    shown = text(compare_table({"[bold]odd[/bold]": records["static"]}), 120)
    assert "[bold]odd[/bold]" in shown


def test_refusals_are_grouped_by_reason() -> None:
    record = toy(1).record
    assert len(record.requests) == 13
    requests = record.requests.copy()
    requests["status"] = pd.Series(["refused"] * 12 + ["finished"], dtype=object)
    reasons = [f"prompt + output is {9000 + i} tokens, over 8192" for i in range(9)]
    reasons += ["needs 70 of 64 KV blocks"] * 3
    requests["reason"] = pd.Series([*reasons, None], dtype=object)
    found = refusals(Record({}, requests, record.steps, record.events), most=4)
    assert found is not None
    lines = text(found, 120).splitlines()
    assert lines[0] == "12 of 13 requests refused"
    assert lines[1].endswith(
        "9: request 0: prompt + output is 9000 tokens, over 8192 (alike: 1, 2, 3 and 5 more)"
    )
    assert lines[2].endswith("3: request 9: needs 70 of 64 KV blocks (alike: 10, 11)")
    assert refusals(Record({}, requests[12:], record.steps, record.events)) is None


def test_numbers() -> None:
    shown = [number(x) for x in (None, 0, 0.0, 7, 12345, 1234.5, 123.45, 12.345, 1.2345, 0.012345)]
    assert shown == ["–", "0", "0", "7", "12,345", "1,234", "123", "12.3", "1.23", "0.0123"]
    assert (percent(None), percent(0.12345)) == ("–", "12.3%")
    assert latency_unit([None, 12.0]) == ("ms", 1.0)
    assert latency_unit([3.5e5, 12.0])[0] == "s"
    assert latency_unit([])[0] == "ms"


def test_nothing_moves_when_piped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # set where tests run on several cores
    with progress("static", 10) as advance:
        advance(5)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
    console = make_console()
    assert not console.is_terminal
    assert console.width >= 200
    console.print("[bold]x[/bold]")
    assert capsys.readouterr().out == "x\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    with progress("[x] static", 10) as advance:
        advance(5)
    assert "[x] static" in shown.getvalue()
    assert "5/10" in shown.getvalue()
    shown.truncate(0)
    with progress("static", 10, quiet=True) as advance:
        advance(5)
    assert "static" not in shown.getvalue()
