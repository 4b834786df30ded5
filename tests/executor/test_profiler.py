"""The profiler: every cell is what it says, a killed profile goes on, a foreign one is refused."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from executor import profiler as p
from executor.execute import Engine, Machine
from executor.grid import Cell, make_grid
from lengthwise.profiling import Profiling
from serving.step import Features
from sim.models import MODELS
from sim.step_rows import read_rows

SHAPE = replace(
    MODELS["tiny"], name="mini", hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16,
    intermediate=32, vocab=64,
)  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(SHAPE, Machine())


FEW = [
    Cell("prefill", ((0, n),)) for n in (3, 17, 40)
] + [
    Cell("chunk", ((50, 7), (0, 30))),
    Cell("decode", contexts=(5, 60, 33)),
    Cell("decode", contexts=(5, 60, 34)),
    Cell("mixed", ((0, 20),), (40, 41)),
    Cell("padded prefill", ((0, 9), (0, 9)), width=20),
    Cell("padded prefill", ((0, 9), (0, 9)), width=24),
    Cell("padded decode", contexts=(35, 35, 35), width=20),
]  # fmt: skip


def test_the_model_computes_every_cell_of_the_quick_grid_as_counted(engine):
    cells = make_grid(True, 2048, 8192, 200_000)
    profiler = p.Profiler(engine, cells)
    for cell in cells:
        assert profiler.time(cell).seconds > 0  # raises where the model counts otherwise
        f = profiler.features(cell)
        assert f.prefill_slots + f.decode_slots == cell.slots
    kinds = {c.kind for c in cells}
    assert kinds >= {"prefill", "chunk", "decode", "mixed", "padded prefill", "padded decode"}
    assert sum(k.startswith("uneven") for k in kinds) == 4


def test_a_grid_keeps_within_its_limits():
    for cell in make_grid(False, 4096, 3000, 60_000):
        assert cell.slots <= 4096
        assert cell.longest <= 3000
        assert cell.kv_tokens <= 60_000
    assert len(make_grid(False, 16384, 131072, 10**7)) > 400


def test_a_profile_is_rows_that_calibration_reads(engine, tmp_path):
    out = tmp_path / "profile.parquet"
    profiler = p.Profiler(engine, FEW)
    facts = p.describe(engine, True, FEW)
    times = p.measure(profiler, out, facts, repeats=3)
    p.write(out, p.table(profiler, times), facts)
    rows = read_rows(out)
    assert len(rows) == len(FEW)
    assert rows.facts["model"] == "mini"
    assert rows.facts["attention"] == "sdpa"
    table = pd.read_parquet(out)
    assert (table["repeats"] == 3).all()
    assert (table["spread"] >= 0).all()
    assert (table["least_s"] <= table["seconds"]).all()
    chunk = table[table["kind"] == "chunk"].iloc[0]
    assert chunk["prefill_computed_pairs"] == 50 * 7 + 28 + 465
    padded = table[table["kind"] == "padded prefill"].iloc[0]
    assert (padded["prefill_slots"], padded["prefill_tokens"]) == (40, 18)
    assert padded["prefill_computed_pairs"] == 2 * 210
    assert table[list(Features._fields)].to_numpy().dtype == np.int64
    stored = json.loads(pq.read_schema(out).metadata[b"lengthwise"])
    assert stored["versions"].startswith("lengthwise")


def test_a_profile_can_be_read_between_its_rounds(tmp_path):
    profiling = Profiling(tmp_path / "profile.parquet", max_step_tokens=16, max_model_len=128)

    @contextmanager
    def bar(total):
        yield lambda done: told.append((done, total))

    for count, finish in ((1, profiling.write), (3, profiling.finish)):
        told = []
        profiling.rounds(count, bar)
        assert told[-1] == (count * profiling.steps, count * profiling.steps)
        assert finish()["repeats"] == count
        table = pd.read_parquet(profiling.out)
        assert table["repeats"].tolist() == [count] * profiling.steps
    assert not list(tmp_path.glob("*.partial"))


def test_a_killed_profile_goes_on_where_it_was(engine, tmp_path, monkeypatch):
    out = tmp_path / "profile.parquet"
    profiler, facts = p.Profiler(engine, FEW), p.describe(engine, True, FEW)

    def killed(done):
        if done == 14:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        p.measure(profiler, out, facts, 2, progress=killed)
    partial = out.with_name("profile.parquet.partial")
    kept = partial.read_text()
    partial.write_text(kept + "[3, 0.12")  # the line that was being written
    with pytest.raises(KeyboardInterrupt):  # killed once more, at once
        p.measure(profiler, out, facts, 2, progress=lambda done: killed(done - 1))
    assert len(partial.read_text().splitlines()) == 1 + 15
    told = []
    times = p.measure(profiler, out, facts, 2, progress=told.append)
    assert told == [16, 17, 18, 19, 20]
    assert all(len(t) == 2 for t in times.values())
    before = [json.loads(line) for line in kept.splitlines()[1:]]
    assert all(p.Timing(*t) in times[FEW[i]] for i, *t in before)

    with pytest.raises(p.ProfileError, match="left by a profile of something else"):
        p.measure(profiler, out, facts | {"dtype": "bf16"}, 2)


def test_a_model_that_skips_work_is_caught(engine):
    profiler = p.Profiler(engine, FEW)
    wrong = replace(FEW[4])
    object.__setattr__(profiler, "features", lambda cell: cell.features._replace(decode_slots=2))
    with pytest.raises(RuntimeError, match="the model computed"):
        profiler.time(wrong)
