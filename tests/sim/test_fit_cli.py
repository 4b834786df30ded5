import json

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

import lengthwise
from lengthwise.calibrate_cli import calibrate
from sim.fitted import FittedCost
from tests.sim.test_fit_kernels import made_tables
from tests.sim.test_fit_steps import made_steps, uneven_table

app = typer.Typer()
app.command()(calibrate)


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def rows(tmp_path):
    made = made_steps(200, noise=0.02)
    path = tmp_path / "rows.csv"
    pd.DataFrame(made.columns).assign(seconds=made.seconds).to_csv(path, index=False)
    facts = {"model": "tiny", "hardware": "this machine", "versions": {"torch": "2.13", "cpu": "x"}}
    (tmp_path / "rows.json").write_text(json.dumps(facts))
    return path


def test_steps(rows, tmp_path):
    out = tmp_path / "cost.json"
    done = run(rows, "--out", out, "--hardware", "h100", "--date", "2026-01-02")
    assert done.exit_code == 0, done.output
    for word in ("rows.csv", "decode", "prefill", "mixed", "mean error %", str(out)):
        assert word in done.output
    made = FittedCost.load(out).calibration.provenance
    assert (made.model, made.layers, made.hidden) == ("tiny", 8, 256)
    assert (made.hardware, made.date, made.rows) == ("h100", "2026-01-02", 200)
    assert made.versions == "torch 2.13, cpu x"


def test_uneven_decodes_are_a_table_of_their_own(rows, tmp_path):
    table = tmp_path / "uneven.csv"
    uneven_table(100).to_csv(table, index=False)
    flags = ("--uneven", table, "--uneven-forwards", 3, "--out", tmp_path / "cost.json", "--json")
    document = json.loads(run(rows, *flags).stdout)
    assert document["rows"] == 300
    assert max(document["terms_s"]["mixed_tail"]["seconds"]) > 0
    (tmp_path / "rows.json").unlink()
    for done in (run(rows, *flags, "--force"), run("--ops", tmp_path, "--uneven", table)):
        assert done.exit_code == 2
        assert "--uneven" in done.output


def test_steps_as_json(rows, tmp_path):
    out = tmp_path / "cost.json"
    done = run(rows, "--out", out, "--json")
    document = json.loads(done.stdout)
    assert document["rows"] == 200
    assert set(document["error_pct"]) == {"mean", "median", "p90", "decode", "prefill", "mixed"}
    assert document["spread_pct"] is None
    assert document["terms_s"]["step"] > 0


def test_kernels(tmp_path):
    made_tables(tmp_path)
    out = tmp_path / "efficiency.json"
    done = run("--ops", tmp_path, "--out", out)
    assert done.exit_code == 0, done.output
    assert "gemm-bf16" in done.output
    assert "h100" in json.loads(out.read_text())
    document = json.loads(run("--ops", tmp_path, "--json").stdout)
    assert [k["op"] for k in document["kernels"]] == [
        "prefill attention",
        "gemm-bf16",
        "decode attention",
    ]


def test_mistakes_are_said(rows, tmp_path):
    out = tmp_path / "cost.json"
    for args, message in (
        ((), "give either ROWS or --ops DIR"),
        ((rows,), "--out FILE"),
        ((tmp_path / "none.csv", "--out", out), "not a readable table"),
        (("--ops", tmp_path / "none"), "no table of kernels"),
        ((rows, "--out", out, "--model", "tinny"), "did you mean tiny?"),
    ):
        done = run(*args)
        assert done.exit_code == 2, args
        assert message in " ".join(done.output.split()), args
        assert "Traceback" not in done.output
    out.write_text("mine")
    done = run(rows, "--out", out)
    assert done.exit_code == 2
    assert "--force" in done.output
    assert out.read_text() == "mine"
    assert run(rows, "--out", out, "--force").exit_code == 0


def test_a_replay_names_what_a_cost_file_was_made_for(rows, tmp_path):
    """Another model, machine or version is a note; words that name no known GPU are not."""
    out = tmp_path / "cost.json"
    trace = lengthwise.load_trace("chat", limit=2)
    run(rows, "--out", out, "--hardware", "NVIDIA L4 (24 GB)")
    made = json.loads(out.read_text())
    made["provenance"]["lengthwise"] = "0.0.1"
    out.write_text(json.dumps(made))
    notes = lengthwise.replay(trace, cost=str(out), hardware="h100", model="qwen3-8b").notes
    said = " ".join(notes)
    for words in ("model tiny, not qwen3-8b", "hardware NVIDIA L4 (24 GB), not h100", "0.0.1, not"):
        assert words in said
    same = " ".join(lengthwise.replay(trace, cost=str(out), hardware="l4", model="tiny").notes)
    assert "hardware" not in same
    assert "model tiny" not in same
