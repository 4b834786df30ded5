"""Recordings of the engines' own schedulers are reproduced, and differences are named."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lengthwise.conform_cli import conform as command
from policies.conform import RecordingError, VllmRecording, compare, parse, read, vllm
from tests.policies.recordings import FOLDER, names, recording
from tests.shared import shared

app = typer.Typer()
app.command()(command)


def tiny(engine: str = "vllm") -> Any:
    """The JSON of the smallest recording, to be spoilt."""
    return json.loads(gzip.decompress((FOLDER / engine / "01_tiny.json.gz").read_bytes()))


# Every decision is the engine's own


@pytest.mark.parametrize("name", names("vllm"))
def test_vllm_is_reproduced(name: str) -> None:
    assert compare(recording("vllm", name)) is None


@pytest.mark.parametrize("name", names("sglang"))
def test_sglang_is_reproduced(name: str) -> None:
    assert compare(recording("sglang", name)) is None


def test_the_recordings_here_are_the_shared_ones() -> None:
    for engine, folder in (("vllm", "golden"), ("sglang", "golden_sglang")):
        theirs = {p.name: json.loads(p.read_bytes()) for p in shared(folder).glob("*.json")}
        ours = {
            p.name.removesuffix(".gz"): json.loads(gzip.decompress(p.read_bytes()))
            for p in (FOLDER / engine).glob("*.gz")
        }
        assert {name: ours.get(name) for name in theirs} == theirs


@pytest.mark.parametrize("name", [n for n in names("vllm") if n.startswith(("12_", "x15_"))])
def test_where_vllm_gets_stuck_one_request_is_refused_and_the_rest_finish(name: str) -> None:
    stuck = recording("vllm", name)
    assert isinstance(stuck, VllmRecording)
    assert stuck.outcome == "stuck"
    config = stuck.config
    usable = (config.num_gpu_blocks - 1) * config.block_size
    hopeless = [r.idx for r in stuck.requests if r.prompt_len + r.output_len - 1 > usable]
    core, observe = vllm.build(config, refuse=True)
    served: list[int] = []
    for line in islice(vllm.drive(stuck, core, observe), len(stuck.iterations) + 2000):
        served += line["finished"]
    refused = core.recorder.refused
    assert len(hopeless) == 1
    assert [request.index for request, _ in refused] == hopeless
    assert "KV blocks, over the" in refused[0][1]
    assert sorted(served) == [r.idx for r in stuck.requests if r.idx not in hopeless]


# A difference is seen, whichever field it is in


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scheduled", {"0": 1}),
        ("preempted", [0]),
        ("free_blocks", 7),
        ("running", 0),
        ("waiting", 3),
        ("finished", [0]),
        ("cache_hit", {"0": 16}),
        ("processed", [0]),
        ("step", 9),
    ],
)
def test_a_changed_field_is_named(field: str, value: Any) -> None:
    data = tiny()
    data["iterations"][1][field] = value
    difference = compare(parse(data, "changed"))
    assert difference is not None
    assert (difference.step, difference.field) == (9 if field == "step" else 1, field)
    expected = {int(k): v for k, v in value.items()} if isinstance(value, dict) else value
    assert difference.recorded == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "decode"),
        ("retracted", [0]),
        ("available", 7),
        ("evictable", 3),
        ("ratio", 0.699999),
        ("chunked", 1),
    ],
)
def test_a_changed_field_of_sglang_is_named(field: str, value: Any) -> None:
    data = tiny("sglang")
    data["iterations"][0][field] = value
    difference = compare(parse(data, "changed"))
    assert difference is not None
    assert (difference.step, difference.field, difference.recorded) == (0, field, value)


def test_the_order_within_a_step_counts() -> None:
    data = tiny()
    line = next(i for i in data["iterations"] if len(i["scheduled"]) > 1)
    line["scheduled"] = dict(reversed(line["scheduled"].items()))
    difference = compare(parse(data, "reversed"))
    assert difference is not None
    assert str(difference).startswith(f"step {line['step']} scheduled order: recorded [")


def test_only_the_entries_that_differ_are_shown() -> None:
    data = tiny()
    line = next(i for i in data["iterations"] if len(i["scheduled"]) > 1)
    first = next(iter(line["scheduled"]))
    line["scheduled"][first] += 1
    text = str(compare(parse(data, "changed")))
    assert f"{{{first}: {line['scheduled'][first]}}}" in text
    assert "entries equal" in text


def test_a_request_said_to_be_unfinished_is_noticed() -> None:
    data = tiny()
    data["unfinished"] = [2]
    difference = compare(parse(data, "changed"))
    assert difference is not None
    assert difference.field == "unfinished"


# Files that are no recordings


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.pop("vllm_version"), "exactly one of vllm_version, sglang_version"),
        (lambda d: d.update(sglang_version="0"), "found vllm_version, sglang_version"),
        (lambda d: d["config"].pop("max_num_seqs"), "config.max_num_seqs: Field required"),
        (lambda d: d["config"].update(beam=4), "config.beam: Extra inputs"),
        (lambda d: d["config"].update(policy="lifo"), "config.policy"),
        (lambda d: d["requests"][1].update(prompt_len=0), "requests.1.prompt_len"),
        (lambda d: d["requests"][1].update(idx=0), "2 requests have idx 0"),
        (lambda d: d.update(requests=[]), "requests: "),
        (lambda d: d.update(iterations=[]), "iterations: "),
        (lambda d: d["iterations"][0].pop("free_blocks"), "iterations.0.free_blocks"),
        (lambda d: d["requests"][0].update(prompt_len=10**9), "max_model_len"),
    ],
)
def test_a_bad_file_is_refused_by_field(spoil: Any, message: str) -> None:
    data = tiny()
    spoil(data)
    with pytest.raises(RecordingError, match=message) as error:
        parse(data, "mine.json")
    assert str(error.value).startswith("mine.json: ")


def test_truncated_and_foreign_files_are_refused(tmp_path: Path) -> None:
    whole = (FOLDER / "vllm" / "01_tiny.json.gz").read_bytes()
    for content in (b"", b"\xff\xfe\x00", b"[1, 2]", whole[:100], gzip.compress(b"{")):
        path = tmp_path / "bad"
        path.write_bytes(content)
        with pytest.raises(RecordingError, match="bad"):
            read(path)
    with pytest.raises(RecordingError, match="absent"):
        read(tmp_path / "absent")


# The command


def test_the_command_says_same_differing_and_bad(tmp_path: Path) -> None:
    good = FOLDER / "vllm" / "01_tiny.json.gz"
    changed, bad = tmp_path / "changed.json", tmp_path / "bad.json"
    data = tiny()
    data["iterations"][2]["waiting"] = 9
    changed.write_text(json.dumps(data))
    bad.write_text("{}")
    run = CliRunner().invoke

    same = run(app, [str(good)])
    assert (same.exit_code, same.stdout) == (0, f"{good}: same\n")

    differing = run(app, [str(changed), str(good)])
    assert differing.exit_code == 1
    assert differing.stdout.splitlines() == [
        f"{changed}: step 2 waiting: recorded 9, here 0",
        f"{good}: same",
    ]

    mixed = run(app, [str(bad), str(changed), str(good)])
    assert mixed.exit_code == 2
    assert len(mixed.stdout.splitlines()) == 2
    assert "exactly one of" in mixed.stderr

    as_json = run(app, ["--json", str(changed), str(good)])
    assert as_json.exit_code == 1
    document = json.loads(as_json.stdout)
    assert document["same"] is False
    assert document["files"][str(good)] is None
    assert document["files"][str(changed)]["field"] == "waiting"
