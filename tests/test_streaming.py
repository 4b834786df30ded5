"""Steps and events that are written as they come: the same tables and figures, to the last bit."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lengthwise
from lengthwise.cli import main
from lengthwise.config import RunConfig
from serving.assemble import Assembled, Assembly
from serving.keep import InFolder, InMemory, Keep, Nowhere
from serving.metrics import Folded, summarize
from serving.parquet import ROWS, Arrays, Stored
from serving.record import Record, RecordError
from serving.recorder import FINISH, Recorder
from serving.request import Request
from serving.step import PACKED, Features, Step
from serving.tables import REQUESTS
from serving.totals import ExactSum
from serving.unbroken import unbroken
from sim.engine import Options, Replica, simulate
from tests.plain import plain
from tests.shared import ROOT
from tests.strategies import Case, cases, cost_model, engine, examples, requests

CONFIG = {"max_num_batched_tokens": 8, "kv_blocks": 40, "enable_prefix_caching": True}
SLO = {"ttft_p99_ms": 900.0, "itl_p90_ms": 60.0}


def in_turn(request: Request, replicas: Any) -> Replica:
    one: Replica = replicas[request.index % len(replicas)]
    return one


def until(source: Iterator[Request], cut: int | None) -> Iterator[Request]:
    """The requests, but somebody presses Ctrl-C when one of them is taken."""
    for request in source:
        if request.index == cut:
            raise KeyboardInterrupt
        yield request


def run(case: Case, recorders: list[Recorder], cut: int | None) -> None:
    """Run a case on as many replicas as there are recorders."""
    engines = [engine(case, recorder) for recorder in recorders]
    how = Options(2 if case.settings.async_scheduling else 1, True, case.cuda_graphs)
    source = until(iter(requests(case)), cut)
    try:
        simulate(source, engines, cost_model(case.cost), how, in_turn)
    except KeyboardInterrupt:
        assert cut is not None


def streamed(case: Case, replicas: int, cut: int | None, lot: int, keep: Keep) -> Assembled:
    assembly = Assembly(case.trace, replicas, keep)
    recorders = [Recorder(partial(assembly.take, i), lot) for i in range(replicas)]
    run(case, recorders, cut)
    for recorder in recorders:
        recorder.close()
    return assembly.finish([entry for recorder in recorders for entry in recorder.refused])


def equal(one: pd.DataFrame, other: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(one, other, check_exact=True)


@given(
    case=cases(),
    replicas=st.integers(1, 3),
    cut=st.none() | st.integers(0, 11),
    lot=st.sampled_from([2, 3, 7, 1000]),
    rows=st.sampled_from([1, 4, 100]),
)
@examples(60)
def test_as_it_comes_is_as_all_at_once(
    case: Case, replicas: int, cut: int | None, lot: int, rows: int
) -> None:
    recorders = [Recorder() for _ in range(replicas)]
    run(case, recorders, cut)
    wanted = plain(case.trace, recorders)
    assert cut is not None or "unfinished" not in set(wanted[0]["status"])
    figures = summarize(CONFIG, wanted[0], Folded.of(*wanted), SLO)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr("serving.parquet.ROWS", rows)
        patch.setattr("serving.keep.ROWS", rows)
        keeps: list[Keep] = [InFolder(Path(name), replicas), InMemory(replicas), Nowhere()]
        for keep in keeps:
            made = streamed(case, replicas, cut, lot, keep)
            assert summarize(CONFIG, made.requests.values, made.folded, SLO) == figures
            equal(made.requests.read(), wanted[0])
            for table, truth in zip((made.steps, made.events), wanted[1:], strict=True):
                if isinstance(table, Stored):
                    equal(table.read(), truth)
                    groups = pq.ParquetFile(table.path).num_row_groups
                    assert groups == math.ceil(len(truth) / rows)
                elif isinstance(table, Arrays):
                    equal(table.read(), truth)
                else:
                    assert isinstance(keep, Nowhere)
        assert sorted(os.listdir(name)) == ["events.parquet", "steps.parquet"]


@given(
    values=st.lists(st.floats(-1e300, 1e300), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
@examples(100)
def test_a_sum_is_rounded_once(values: list[float], cuts: list[int], seed: int) -> None:
    total = ExactSum()
    for part in np.split(np.random.default_rng(seed).permutation(values), sorted(cuts)):
        total.add(part)
    try:
        assert total.value == math.fsum(values)
    except OverflowError:  # of a sum that no float can be
        assert abs(sum(map(int, values))) > 1.7e308
    total.add([math.nan])
    assert total.value is None


@pytest.mark.parametrize("spread", [0, 1, 30, 300])
def test_a_sum_of_many_is_rounded_once(spread: int) -> None:
    random = np.random.default_rng(spread)
    values = random.choice([-1, 1, 1], 200_000) * random.uniform(1, 2, 200_000)
    values = np.ldexp(values, random.integers(-spread, spread + 1, 200_000))
    total = ExactSum()
    total.add(values)
    total.add([5e-324])
    assert total.value == math.fsum([*values.tolist(), 5e-324])


# Runs from the command line


def called(*arguments: str | Path, code: int = 0) -> None:
    """Call the command line in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lengthwise", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert (ended.value.code or 0) == code


FLAGS: dict[str, Any] = {
    "limit": 150,
    "rate_scale": 30,
    "num_gpu_blocks_override": 700,
    "max_num_seqs": 24,
    "goodput": {"ttft": 500.0},
}
"""A crowded run: preemptions, refusals, waiting."""


@pytest.mark.parametrize("replicas", [1, 3])
def test_every_way_to_keep_a_record(
    replicas: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.json"
    config.write_text(json.dumps({"replicas": replicas, "max_model_len": 4096, **FLAGS}))
    files: dict[str, dict[str, bytes]] = {}
    for level in ("full", "requests", "summary"):
        out = tmp_path / level
        called("replay", "chat", "--config", config, "--record", level, "--out", out)
        assert "requests refused" in capsys.readouterr().out
        files[level] = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(files["summary"]) == {"config.json", "summary.json"}
    assert set(files["requests"]) == {*files["summary"], "requests.parquet"}
    assert set(files["full"]) == {*files["requests"], "steps.parquet", "events.parquet"}
    for level in ("requests", "summary"):
        for name in set(files[level]) - {"config.json"}:
            assert files[level][name] == files["full"][name]
    # the same from Python, where all of it is in memory until it is saved
    kept = lengthwise.replay("chat", replicas=replicas, max_model_len=4096, **FLAGS)
    assert kept.summary["preemptions"]
    assert kept.summary["refused"]
    kept.save(tmp_path / "kept")
    assert {p.name: p.read_bytes() for p in (tmp_path / "kept").iterdir()} == files["full"]
    # and made anew of the tables alone
    assert Record.load(tmp_path / "full").summary == kept.summary


def test_what_was_not_kept_is_asked_for_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = lengthwise.replay("chat", limit=20, record="requests")
    few.save(tmp_path / "run")
    back = Record.load(tmp_path / "run")
    assert back.summary == few.summary
    equal(back.requests, few.requests)
    for record in (few, back):
        with pytest.raises(RecordError, match=r"steps\.parquet: .* --record requests does not"):
            record.steps  # noqa: B018
    assert few.latencies["itl"].percentile(50) is not None
    with pytest.raises(RecordError, match=r"run.events\.parquet: .*again with --record full"):
        back.events  # noqa: B018
    least = lengthwise.replay("chat", limit=20, record="summary")
    least.save(tmp_path / "least")
    with pytest.raises(RecordError, match=r"least.requests\.parquet: .* --record summary"):
        Record.load(tmp_path / "least").requests  # noqa: B018
    for name, what in (("run", "steps"), ("least", "requests")):
        for verb in ("report", "timeline"):
            called(verb, tmp_path / name, "--out", tmp_path / "x", code=2)
            said = capsys.readouterr().err
            assert f"{name}/{what}.parquet" in said
            assert "run it again with --record full" in said
    assert not (tmp_path / "x").exists()
    how = ("--limit", "20", "--policies", "static,continuous", "--record", "requests")
    called("compare", "chat", *how, "--out", tmp_path / "both")
    assert "no running.png: it needs the steps" in capsys.readouterr().out
    assert {p.name for p in (tmp_path / "both" / "static").iterdir()} == {
        *("config.json", "summary.json", "requests.parquet")
    }
    pictures = {p.stem for p in (tmp_path / "both").glob("*.png")}
    assert pictures == {"latency", "padding"}
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["run"]["record"] = "most"
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(RecordError, match="record 'most' is none of full, requests, summary"):
        Record.load(tmp_path / "run")
    with pytest.raises(ValueError, match="--record most"):
        RunConfig.of(record="most")


def test_a_long_run_has_several_row_groups(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text(
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,10,150000\n0.5,10,140000\n"
    )
    flags = ("--cost", "fixed", "--step-ms", "10", "--max-model-len", "1000000")
    called("replay", tmp_path / "long.csv", *flags, "--out", tmp_path / "run")
    file = pq.ParquetFile(tmp_path / "run" / "steps.parquet")
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert sizes == [ROWS, ROWS, sum(sizes) - 2 * ROWS]
    steps = Record.load(tmp_path / "run").steps
    assert steps["step"].tolist() == list(range(sum(sizes)))
    assert steps["decode_tokens"].sum() == 150_000 + 140_000 - 2


SLOW = ("chat", "--limit", "200000", "--rate-scale", "3.5")


def started(out: Path) -> subprocess.Popen[bytes]:
    """A run that has begun to write."""
    command = [sys.executable, "-m", "lengthwise", "replay", *SLOW, "--quiet", "--out", str(out)]
    process = subprocess.Popen(command, cwd=ROOT)
    while not list(out.parent.glob(".run.tmp-*/steps.parquet")):
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(1.0)
    return process


def test_a_killed_run_leaves_no_record(tmp_path: Path) -> None:
    process = started(tmp_path / "run")
    process.kill()
    process.wait()
    assert not (tmp_path / "run").exists()
    called("replay", "chat", "--limit", "20", "--out", tmp_path / "run")
    assert Record.load(tmp_path / "run").summary["completed"] == 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_had_run(tmp_path: Path, number: signal.Signals) -> None:
    process = started(tmp_path / "run")
    process.send_signal(number)
    assert process.wait() == 130
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    record = Record.load(tmp_path / "run")
    assert record.config["interrupted"] is True
    assert record.summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 0 < record.summary["completed"] < 200_000
    ends = record.steps["end_s"].to_numpy()
    assert (record.steps["start_s"].to_numpy()[1:] >= ends[:-1]).all()
    assert list(record.requests.columns) == list(REQUESTS)


# The recorder


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    done = []
    before = signal.getsignal(signal.SIGINT)

    def work() -> None:
        with unbroken():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done
    assert signal.getsignal(signal.SIGINT) is before


def test_events_are_handed_on_with_their_steps_and_never_out_of_order() -> None:
    handed: list[tuple[list[int], list[int]]] = []
    recorder = Recorder(
        lambda steps, events, _: handed.append((steps["step"].tolist(), events[:, 0].tolist())), 2
    )
    for number in range(6):
        recorder.log((number + 1, 7, 0, 0, -1))  # of the step behind, which is planned already
        recorder.step(
            Step(number, PACKED, (), _Nobody(), (), Features(), 0, 0, 0), number, number + 1
        )
        recorder.log((number, 7, FINISH, 0, -1))
    recorder.close()
    assert [steps for steps, _ in handed] == [[0, 1], [2, 3], [4, 5], []]
    assert [events for _, events in handed] == [[0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5], []]
    recorder.log((1, 7, FINISH, 0, -1))
    with pytest.raises(RuntimeError, match="an event of step 1, which ended long ago"):
        recorder.close()


class _Nobody:
    rows = live = context = 0

    def members(self) -> list[Request]:
        return []
