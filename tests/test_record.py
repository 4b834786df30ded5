"""Records on disk: whole or not at all, never over another, and the same when read back."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from serving import recorder
from serving.folder import FolderError, _set_aside, new_file, new_folder
from serving.record import Record, RecordError, RecordExists, ensure_free, make_table
from serving.tables import EVENTS, KINDS, REQUESTS, STEPS
from tests.report.toy import toy
from tests.shared import ROOT

FILES = {"config.json", "summary.json", "requests.parquet", "steps.parquet", "events.parquet"}


@pytest.fixture
def record() -> Record:
    return toy(1, config={"goodput": {"ttft": 500.0}}).record


def test_read_back_is_the_same(record: Record, tmp_path: Path) -> None:
    noted = Record(record.config, record.requests, record.steps, record.events, ("sorted", "é"))
    assert noted.save(tmp_path / "a" / "run") == tmp_path / "a" / "run"
    back = Record.load(tmp_path / "a" / "run")
    assert {p.name for p in (tmp_path / "a" / "run").iterdir()} == FILES
    assert (back.config, back.notes) == (noted.config, noted.notes)
    pd.testing.assert_frame_equal(back.requests, noted.requests)
    pd.testing.assert_frame_equal(back.steps, noted.steps)
    pd.testing.assert_frame_equal(back.events, noted.events)
    on_disk = json.loads((tmp_path / "a" / "run" / "summary.json").read_text())
    assert on_disk == back.summary == noted.summary
    assert on_disk["request_goodput"] > 0


def test_kinds_of_event_have_their_numbers() -> None:
    numbers = {name.lower(): value for name, value in vars(recorder).items() if name.isupper()}
    assert [numbers[kind] for kind in KINDS] == list(range(len(KINDS)))


def test_columns_on_disk(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "run")
    for name, columns in {"requests": REQUESTS, "steps": STEPS, "events": EVENTS}.items():
        schema = pq.read_schema(tmp_path / "run" / f"{name}.parquet")
        assert schema.names == list(columns)
        numbers = [c for c, d in columns.items() if d in ("int64", "float64")]
        types = {"int64": "int64", "float64": "double"}
        assert [str(schema.field(c).type) for c in numbers] == [types[columns[c]] for c in numbers]


def test_same_record_same_bytes(tmp_path: Path) -> None:
    toy(5).record.save(tmp_path / "a")
    toy(5).record.save(tmp_path / "b")
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_empty_record(record: Record, tmp_path: Path) -> None:
    empty = Record({}, record.requests[:0], record.steps[:0], record.events[:0])
    empty.save(tmp_path / "run")
    back = Record.load(tmp_path / "run")
    assert len(back.requests) == len(back.steps) == len(back.events) == 0
    assert back.summary["duration"] is None


def test_undefined_is_null_and_never_nan(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "run")

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in summary.json")

    text = (tmp_path / "run" / "summary.json").read_text()
    assert json.loads(text, parse_constant=refuse)["prefix_hit_rate"] is None
    bad = Record({"rate": float("nan")}, record.requests, record.steps, record.events)
    with pytest.raises(RecordError, match=r"config\.json: .*not JSON compliant"):
        bad.save(tmp_path / "bad")
    with pytest.raises(RecordError, match=r"config\.json: .*set is not JSON serializable"):
        Record({"x": set()}, record.requests, record.steps, record.events).save(tmp_path / "bad")
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


def test_an_existing_folder_is_not_replaced_unasked(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "run")
    before = (tmp_path / "run" / "summary.json").stat().st_mtime_ns
    for check in (record.save, ensure_free):
        with pytest.raises(RecordExists, match="exists already; choose another --out or add"):
            check(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("empty", "file"):
        with pytest.raises(RecordExists):
            record.save(tmp_path / name)
    assert (tmp_path / "run" / "summary.json").stat().st_mtime_ns == before


def test_force_replaces_a_record_and_nothing_else(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "run")
    (tmp_path / "run" / "picture.png").touch()
    other = toy(2).record
    ensure_free(tmp_path / "run", force=True)
    other.save(tmp_path / "run", force=True)
    assert {p.name for p in (tmp_path / "run").iterdir()} == FILES
    assert Record.load(tmp_path / "run").summary == other.summary
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").touch()
    for check in (other.save, ensure_free):
        with pytest.raises(FolderError, match=r"not a folder of results .*no summary\.json"):
            check(tmp_path / "home", force=True)
    assert (tmp_path / "home" / "thesis.txt").exists()
    (tmp_path / "empty").mkdir()
    other.save(tmp_path / "empty", force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "home", "run"]


def test_a_link_to_a_record_is_followed(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "run")
    (tmp_path / "latest").symlink_to(tmp_path / "run")
    toy(2).record.save(tmp_path / "latest", force=True)
    assert (tmp_path / "latest").is_symlink()
    assert Record.load(tmp_path / "run").summary == toy(2).record.summary


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_interrupted_writing_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    def write() -> None:
        with new_folder(tmp_path / "run") as folder:
            assert folder.name.startswith(".run.tmp-")
            assert folder.parent == tmp_path
            (folder / "half").touch()
            raise error

    with pytest.raises(error):
        write()
    assert list(tmp_path.iterdir()) == []


KILLED = """
import sys, time
from serving.folder import new_folder
with new_folder(sys.argv[1]) as folder:
    (folder / "half").touch()
    print("writing", flush=True)
    time.sleep(60)
"""


def test_a_killed_run_leaves_nothing_visible(record: Record, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGKILL)
    assert [p.name.split(".tmp-")[0] for p in tmp_path.iterdir()] == [".run"]
    record.save(tmp_path / "run")
    assert Record.load(tmp_path / "run").summary == record.summary


def _race(folder: Path, seed: int, at: float, results: multiprocessing.Queue[str]) -> None:
    record = toy(seed).record
    assert record.summary
    time.sleep(max(0.0, at - time.time()))
    try:
        record.save(folder)
        results.put(f"won {seed}")
    except RecordExists:
        results.put("exists")


def test_of_two_writers_one_wins(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for round_ in range(3):
        folder = tmp_path / str(round_)
        results: multiprocessing.Queue[str] = context.Queue()
        at = time.time() + 0.3
        racers = [
            context.Process(target=_race, args=(folder, seed, at, results)) for seed in (1, 2, 3)
        ]
        for racer in racers:
            racer.start()
        outcomes = sorted(results.get(timeout=30) for _ in racers)
        for racer in racers:
            racer.join()
        assert outcomes[:2] == ["exists", "exists"]
        winner = int(outcomes[2].removeprefix("won "))
        assert Record.load(folder).summary == toy(winner).record.summary
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@contextmanager
def _as_nobody() -> Iterator[None]:
    """Root may write anywhere, so step down to a user who may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_may_not_be_written(record: Record) -> None:
    with tempfile.TemporaryDirectory() as name:
        parent = Path(name)
        parent.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
        with _as_nobody(), pytest.raises(FolderError, match=r"cannot write .*Permission denied"):
            record.save(parent / "run")
        parent.chmod(stat.S_IRWXU)
    with pytest.raises(FolderError, match=r"cannot write .*File exists"):
        record.save("/dev/null/run")


def test_the_result_has_ordinary_permissions(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "run")
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "run").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_loading_says_what_is_wrong(record: Record, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"nowhere: no such folder; give one that a run wrote"):
        Record.load(tmp_path / "nowhere")
    with pytest.raises(RecordError, match=r"config\.json: no such file; is .* a record folder\?"):
        Record.load(tmp_path)
    run = record.save(tmp_path / "run")
    steps = pd.read_parquet(run / "steps.parquet")
    steps.drop(columns=["end_s", "waiting"]).to_parquet(run / "steps.parquet")
    with pytest.raises(RecordError, match=r"steps\.parquet: lacks the column end_s, waiting"):
        Record.load(run)
    steps.assign(end_s="late").to_parquet(run / "steps.parquet")
    with pytest.raises(RecordError, match=r"end_s is (large_)?string with 0 nulls, not float64"):
        Record.load(run)
    steps.assign(waiting=[None] * len(steps)).to_parquet(run / "steps.parquet")
    with pytest.raises(RecordError, match=r"steps\.parquet: waiting is null with \d+ nulls"):
        Record.load(run)
    (run / "steps.parquet").write_text("PAR1")
    with pytest.raises(RecordError, match=r"steps\.parquet: not a readable Parquet file"):
        Record.load(run)
    (run / "steps.parquet").unlink()
    with pytest.raises(RecordError, match=r"steps\.parquet: no such file"):
        Record.load(run)
    (run / "config.json").write_text("{")
    with pytest.raises(RecordError, match=r"config\.json: not a readable JSON file"):
        Record.load(run)
    (run / "config.json").write_text("[]")
    with pytest.raises(RecordError, match=r"config\.json: is not a JSON object"):
        Record.load(run)
    for text, found in (
        ('{"run": null}', "run is None"),
        ('{"run": {"record": ["full"]}}', r"record \['full'\] is none of full"),
        ('{"run": {}, "notes": null}', "notes is None"),
    ):
        (run / "config.json").write_text(text)
        with pytest.raises(RecordError, match=rf"config\.json: {found}"):
            Record.load(run)


def test_tables_must_be_as_described(record: Record) -> None:
    with pytest.raises(RecordError, match=r"steps: lacks columns \['waiting'\]"):
        Record({}, record.requests, record.steps.drop(columns="waiting"), record.events)
    wrong = record.steps.assign(waiting=record.steps["waiting"].astype(float))
    with pytest.raises(RecordError, match="steps: waiting is float64, not int64"):
        Record({}, record.requests, wrong, record.events)
    columns = {name: record.events[name].to_numpy() for name in EVENTS}
    columns["kind"] = np.array(["nap"] * len(record.events), object)
    with pytest.raises(ValueError, match="'nap' is no kind of event"):
        make_table(columns, EVENTS)


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_appears_meanwhile(record: Record, force: bool, tmp_path: Path) -> None:
    def write() -> None:
        with new_folder(tmp_path / "run", force) as temporary:
            record.save(tmp_path / "run")  # somebody else was quicker
            (temporary / "summary.json").write_text("mine")

    if not force:
        with pytest.raises(RecordExists):
            write()
        assert Record.load(tmp_path / "run").summary == record.summary
    else:
        write()
        assert (tmp_path / "run" / "summary.json").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_two_who_replace_the_same_folder(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "run")
    _set_aside(tmp_path / "run")
    _set_aside(tmp_path / "run")  # the other one has done it already
    assert list(tmp_path.iterdir()) == []


def test_a_file_appears_whole_and_never_over_another(tmp_path: Path) -> None:
    def write(text: str, force: bool = False) -> None:
        with new_file(tmp_path / "deep" / "page", force) as temporary:
            temporary.write_text(text)
            if text == "half":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write("half")
    assert list((tmp_path / "deep").iterdir()) == []
    write("one")
    with pytest.raises(RecordExists, match="exists already; choose another --out or add --force"):
        write("two")
    write("three", force=True)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["page"]
    assert (tmp_path / "deep" / "page").read_text() == "three"
    with (
        pytest.raises(FolderError, match="cannot write /dev/null/page"),
        new_file("/dev/null/page"),
    ):
        raise AssertionError("there is nothing to write to")
