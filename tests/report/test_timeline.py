"""Timelines: the format's rules, the right times, and a size that viewers can take."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lengthwise.report_cli import timeline as timeline_command
from lengthwise.timeline import TimelineTooLargeError, write_timeline
from serving.folder import RecordExists
from serving.record import Record
from tests.report.toy import Toy, toy

NEEDS = {  # what each phase of the Trace Event Format must have, and of which type
    "X": {"name": str, "pid": int, "tid": int, "ts": (int, float), "dur": (int, float)},
    "C": {"name": str, "pid": int, "ts": (int, float), "args": dict},
    "M": {"name": str, "pid": int, "args": dict},
}


def written(record: Record, folder: Path, window: Any = None) -> list[dict[str, Any]]:
    path = folder / "trace.json"
    write_timeline(record, path, window)
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, Any]] = data["traceEvents"]
    return events


@pytest.fixture(params=[1, 2])
def run(request: pytest.FixtureRequest) -> Toy:
    return toy(request.param, requests=25, replicas=request.param, trouble=0.4)


def test_keeps_to_the_format(run: Toy, tmp_path: Path) -> None:
    events = written(run.record, tmp_path)
    for event in events:
        for key, kind in NEEDS[event["ph"]].items():
            assert isinstance(event[key], kind), event
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "C":
            assert all(isinstance(v, (int, float)) for v in event["args"].values())
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
    # every track that has slices has a name
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} == named


def test_slices_of_a_track_nest(run: Toy, tmp_path: Path) -> None:
    tracks = defaultdict(list)
    for event in written(run.record, tmp_path):
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for slices in tracks.values():
        for before, after in pairwise(slices):  # in the order in which they begin
            assert after["ts"] >= before["ts"]
            end, other = before["ts"] + before["dur"], after["ts"] + after["dur"]
            assert after["ts"] >= end - 0.01 or other <= end + 0.01


def test_tracks_tell_what_happened(run: Toy, tmp_path: Path) -> None:
    events = written(run.record, tmp_path)
    steps = [e for e in events if e["ph"] == "X" and e["pid"] > 1]
    table = run.record.steps
    assert len(steps) == len(table)
    assert sum(e["args"]["prefill"] for e in steps) == table["prefill_tokens"].sum()
    assert sum(e["args"]["decode"] for e in steps) == table["decode_tokens"].sum()
    for life in run.lives:
        mine = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (1, life.index + 1)]
        if life.status == "refused":
            assert not mine
            continue
        outer = [e for e in mine if e["name"] != "chunk"]
        assert outer[0]["ts"] == pytest.approx(life.arrival * 1e6, abs=0.01)
        last = outer[-1]
        assert last["ts"] + last["dur"] == pytest.approx(life.finished * 1e6, abs=0.01)
        assert sum(e["name"] == "preempted" for e in outer) == life.preemptions
    counters = [e["args"]["in use"] for e in events if e["name"] == "KV blocks"]
    assert max(counters) == table["kv_blocks_used"].max()


def test_a_window_has_only_what_reaches_into_it(run: Toy, tmp_path: Path) -> None:
    whole, part = written(run.record, tmp_path), written(run.record, tmp_path, (1.0, 2.0))
    inside = [e for e in whole if e["ph"] == "X" and e["ts"] < 2e6 and e["ts"] + e["dur"] > 1e6]
    shown = [e for e in part if e["ph"] == "X"]
    assert shown
    assert len(shown) < len([e for e in whole if e["ph"] == "X"])
    assert {json.dumps(e) for e in inside if e["name"] != "chunk"} == {
        json.dumps(e) for e in shown if e["name"] != "chunk"
    }


def test_size_is_bounded(run: Toy, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_timeline(run.record, path)
    whole = path.stat().st_size
    low, high = write_timeline(run.record, path, most_bytes=whole // 3)
    assert path.stat().st_size <= whole // 3
    assert low < high < run.record.steps["end_s"].max()
    json.loads(path.read_text())
    with pytest.raises(TimelineTooLargeError, match=r"--to 99: the file would exceed 0 MB"):
        write_timeline(run.record, path, (0, 99), most_bytes=whole // 3)
    with pytest.raises(ValueError, match="--from 3 --to 3: the window must end after it begins"):
        write_timeline(run.record, path, (3, 3))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy(1).record.save(tmp_path / "run")
    out = tmp_path / "trace.json"
    timeline_command(tmp_path / "run", out)
    assert "perfetto" in capsys.readouterr().out
    with pytest.raises(RecordExists):
        timeline_command(tmp_path / "run", out)
    timeline_command(tmp_path / "run", out, begin=1.0, force=True)
    assert json.loads(out.read_text())["traceEvents"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "trace.json"]
