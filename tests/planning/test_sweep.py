"""Sweeps: keys, resuming, deaths of workers and of the client, and the same table everywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats

import lengthwise
from lengthwise.config import RunConfig
from lengthwise.planning import cells as cells_module
from lengthwise.planning.cells import Cell, hash_of
from lengthwise.planning.parallel import STRIKES, ClusterError, Where
from lengthwise.planning.spec import SweepSpec
from lengthwise.planning.store import Store
from lengthwise.planning.sweep import Sweep, intervals_of, run_sweep
from tests.shared import ROOT

DEADLY = '''
import os, signal
from pathlib import Path
from serving.step import Wait

class Deadly:
    """Kills the worker that it runs in, so many times over."""

    lifecycle = "drain"

    def form(self, queue, room, now):
        marks = Path(os.environ["LENGTHWISE_TEST_DEATHS"])
        if len(list(marks.iterdir())) < {deaths}:
            (marks / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while queue.peek() is not None and room.fits(queue.peek()):
            room.take(queue.pop())
        return None
'''


def spec_of(**more: Any) -> SweepSpec:
    fields: dict[str, Any] = {
        "trace": "chat",
        "base": {"limit": 30, "slo": {"ttft_p95_ms": 300}},
        "vary": {"policy": ["chunked-prefill", "static"], "max-num-seqs": [4, 32]},
        "rates": [1, 3],
        "seeds": [0, 1],
    }
    return SweepSpec.model_validate(fields | more)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, Store]:
    """The sweep in this process, and its records."""
    store = Store(tmp_path_factory.mktemp("cells"))
    return run_sweep(spec_of(), store, Where(jobs=1)), store


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A policy that kills its worker once."""
    (tmp_path / "marks").mkdir()
    monkeypatch.setenv("LENGTHWISE_TEST_DEATHS", str(tmp_path / "marks"))
    file = tmp_path / "deadly.py"
    file.write_text(DEADLY.format(deaths=1))
    return f"{file}:Deadly"


def with_deadly(policy: str) -> SweepSpec:
    return spec_of(vary={"policy": ["chunked-prefill", policy], "max-num-seqs": [4, 32]})


def same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """To the last bit, keys and policy files aside."""
    left, right = (t.drop(columns=["key", "policy"]) for t in (one, other))
    pd.testing.assert_frame_equal(left, right, check_exact=True)
    return True


# What a sweep is


def test_a_row_is_what_a_replay_gives(once: tuple[Sweep, Store]) -> None:
    table = once[0].table
    assert len(table) == table["key"].nunique() == 16
    row = table.iloc[11]
    told = {name: row[name] for name in ("policy", "max_num_seqs", "rate_scale", "seed")}
    plain = {k: v.item() if hasattr(v, "item") else v for k, v in told.items()}
    record = lengthwise.replay("chat", limit=30, slo={"ttft_p95_ms": 300}, **plain)
    for name, value in record.summary.items():
        if name not in ("slo", "policy"):
            assert row[name] == value or (value is None and pd.isna(row[name])), name
    assert row["ttft_p95_ms"] == record.summary["slo"]["ttft_p95_ms"]["value_ms"]


def test_seeds_are_common_random_numbers(once: tuple[Sweep, Store]) -> None:
    """All cells of one seed get the same requests."""
    tokens = once[0].table.groupby("seed")["total_input_tokens"]
    assert (tokens.nunique() == 1).all()
    assert tokens.first()[0] != tokens.first()[1]


def test_intervals_are_students(once: tuple[Sweep, Store]) -> None:
    sweep = once[0]
    assert sweep.intervals is not None
    rows = sweep.intervals[sweep.intervals["figure"] == "mean_ttft_ms"]
    assert len(rows) == 8
    first = rows.iloc[0]
    sample = sweep.table["mean_ttft_ms"][:2]
    low, high = stats.t.interval(0.95, 1, sample.mean(), stats.sem(sample))
    assert (first["low"], first["high"]) == pytest.approx((low, high))
    alone = intervals_of(sweep.table[sweep.table["seed"] == 0], ["policy", "max_num_seqs"])
    assert alone["low"].isna().sum() == (alone["seeds"] == 1).sum()


def test_what_is_stored_is_not_run_again(
    once: tuple[Sweep, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a wider sweep shares the cells."""
    sweep, store = once
    monkeypatch.setattr(cells_module, "run_cell", None)
    again = run_sweep(spec_of(), store, Where(jobs=1))
    assert (again.computed, again.reused) == (0, 16)
    assert same(again.table, sweep.table)
    monkeypatch.undo()
    wider = run_sweep(spec_of(rates=[1, 2]), store, Where(jobs=1))
    assert (wider.computed, wider.reused) == (8, 8)


def test_a_key_is_of_everything_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = lengthwise.load_trace("chat", limit=20)
    config = RunConfig.of(trace="chat", limit=20)

    def key(config: RunConfig = config, trace: Any = trace) -> str:
        return Cell.of(config, trace, hash_of(trace)).key

    own = key()
    assert key(RunConfig.of(trace="elsewhere.csv", format="csv")) == own
    assert key(RunConfig.of(max_num_seqs=7)) != own
    longer = trace.output_tokens.copy()
    longer[3] += 1
    assert key(trace=replace(trace, output_tokens=longer)) != own
    assert key(trace=replace(trace, priority=np.zeros(20, np.int64))) != own
    file = tmp_path / "mine.py"
    file.write_text("one")
    mine = RunConfig.of(policy=f"{file}:Mine")
    before = key(mine)
    file.write_text("two")
    assert key(mine) != before
    monkeypatch.setattr(cells_module, "version", lambda name: "99")
    assert key() != own


def test_failures_are_listed_and_stop_nothing(tmp_path: Path) -> None:
    spec = spec_of(vary={"policy": ["chunked-prefill", "static"], "watermark": [0.0, 0.1]})
    sweep = run_sweep(spec, Store(tmp_path), Where(jobs=1))
    failed = sweep.table[sweep.table["status"] == "failed"]
    assert (sweep.failed, len(failed), len(sweep.table)) == (4, 4, 16)
    assert set(failed["error"]) == {"--watermark 0.1: static (drain) does not use it"}
    assert failed["mean_ttft_ms"].isna().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vary": {"max-num-seq": [1]}}, r"vary: max_num_seq: unknown; did you mean max_num_seqs"),
        ({"base": {"seed": 1}}, "base: seed: give it as seeds"),
        ({"vary": {"rate-scale": [1]}}, "vary: rate_scale: give it as rates"),
        ({"vary": {"policy": []}}, r"vary\.policy: List should have at least 1 item"),
        ({"rates": [0]}, r"rates\.0: Input should be greater than 0"),
        ({"seeds": []}, "seeds: List should have at least 1 item"),
        ({"polices": ["static"]}, "polices: Extra inputs are not permitted"),
    ],
)
def test_a_spec_is_checked(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump({"trace": "chat"} | changes))
    with pytest.raises(ValueError, match=message):
        SweepSpec.read(file)


# Where it runs


def test_a_worker_that_dies_takes_nothing_with_it(
    once: tuple[Sweep, Store], deadly: str, tmp_path: Path
) -> None:
    store = Store(tmp_path / "cells")
    sweep = run_sweep(with_deadly(deadly), store, Where(jobs=2))
    assert len(list((tmp_path / "marks").iterdir())) == 1
    assert (sweep.computed, sweep.failed) == (16, 0)
    half = sweep.table["policy"] == "chunked-prefill"
    assert same(sweep.table[half], once[0].table[half])


def test_a_cell_that_kills_every_worker_is_given_up(tmp_path: Path, deadly: str) -> None:
    Path(deadly.removesuffix(":Deadly")).write_text(DEADLY.format(deaths=99))
    sweep = run_sweep(
        spec_of(vary={"policy": ["chunked-prefill", deadly]}, rates=[1], seeds=[0]),
        Store(tmp_path / "cells"),
        Where(jobs=2),
    )
    assert (sweep.computed, sweep.failed) == (1, 1)
    assert sweep.table["error"][1].startswith("its worker died: ")
    assert len(list((tmp_path / "marks").iterdir())) >= STRIKES


def test_dask_gives_the_same_table_over_a_dead_worker(
    once: tuple[Sweep, Store], deadly: str, tmp_path: Path
) -> None:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        where = Where(dask=cluster.scheduler_address)
        sweep = run_sweep(with_deadly(deadly), Store(tmp_path / "cells"), where)
    assert len(list((tmp_path / "marks").iterdir())) == 1
    assert (sweep.computed, sweep.failed) == (16, 0)
    half = sweep.table["policy"] == "chunked-prefill"
    assert same(sweep.table[half], once[0].table[half])


@pytest.mark.ray
def test_ray_gives_the_same_table(
    once: tuple[Sweep, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a dead worker: `python benchmarks/sweep.py`."""
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "120")
    sweep = run_sweep(spec_of(rates=[3]), Store(tmp_path / "cells"), Where(ray="local"))
    assert (sweep.computed, sweep.failed) == (8, 0)
    table = once[0].table
    assert same(sweep.table, table[table["rate_scale"] == 3].reset_index(drop=True))


def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"^--dask tcp://127\.0\.0\.1:9: no scheduler answers"):
        run_sweep(spec_of(), Store(tmp_path), Where(dask="tcp://127.0.0.1:9"))


def test_a_killed_sweep_goes_on_where_it_was(once: tuple[Sweep, Store], tmp_path: Path) -> None:
    """The client is killed in the middle; finished cells are not touched again."""
    file, store = tmp_path / "spec.yaml", tmp_path / "cells"
    file.write_text(yaml.safe_dump(spec_of().model_dump(mode="json"), sort_keys=False))
    words = ["sweep", str(file), "--store", str(store), "--jobs", "1"]
    command = [sys.executable, "-m", "lengthwise", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    begun = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    while begun.poll() is None and len(finished(store)) < 5:
        time.sleep(0.01)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.wait()
    before = {key: (store / key).stat().st_mtime_ns for key in finished(store)}
    assert 5 <= len(before) < 16
    again = subprocess.run(
        [*command, "--out", "out"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert f"{16 - len(before)} run, {len(before)} in the store before, 0 failed" in again.stdout
    assert before == {key: (store / key).stat().st_mtime_ns for key in before}
    assert same(pd.read_parquet(tmp_path / "out" / "sweep.parquet"), once[0].table)


def finished(store: Path) -> list[str]:
    return [path.parent.name for path in store.glob("[0-9a-f]*/summary.json")]
