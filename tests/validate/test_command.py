"""The command: its document, its folder, its words, and a run on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

from lengthwise.validate.folder import read_folder
from lengthwise.validate.here import at_load
from lengthwise.validate.measured import MeasuredError
from lengthwise.validate.of_record import of_record
from lengthwise.validate.overhead import Overhead, overhead_of
from lengthwise.validate.plots import FIGURES_OF, distributions, error_by_depth
from lengthwise.validate.predict import busy_share, configured, other_origin, predict
from lengthwise.validate.report import Report, document
from lengthwise.validate.report import validate as compared
from lengthwise.validate.tables import tables
from lengthwise.validate_cli import validate
from serving.record import Record
from sim.fitted import Calibration
from tests.report.test_plots import check_layout
from tests.validate.made import (
    as_measured,
    as_vllm,
    cost_file,
    simulated,
    trace,
    write_folder,
    write_peer,
)

app = typer.Typer()
app.command()(validate)

FIGURE_KEYS = {"mean", "p50", "p90", "p99"}
QUANTITIES = {"ttft", "tpot", "itl", "e2e", "throughput"}
KEYS = {
    *("run", "policy", "requests", "left_out", "error_pct", "wape_pct", "measured", "predicted"),
    *("range", "light_load", "warmup", "peer_wape_pct", "overhead_us_per_layer"),
    *("overhead_fitted_on", "overhead_halves", "plan_cost", "first_difference"),
    *("plans_compared", "config", "notes", "profile_spread_pct"),
}


def run(*args: Any) -> Result:
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with an overhead of 10 µs a layer, and a peer that is 5% over it."""
    requests = trace()
    record = as_vllm(requests, cost_file(tmp_path), overhead_us_per_layer=10.0)
    made = write_folder(tmp_path / "run", record, requests)
    write_peer(made, record, 1.05)
    return made


def test_the_document_has_its_keys(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    how = ("--measured", folder, "--cost", tmp_path / "cost.json", "--fit-overhead", folder)
    done = run(*how, "--warmup", 10, "--json", "--out", out)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert set(found) == KEYS
    assert found == json.loads((out / "summary.json").read_text())
    for side in ("error_pct", "measured", "predicted", "range"):
        assert set(found[side]) == QUANTITIES
        assert all(set(figures) == FIGURE_KEYS for figures in found[side].values())
    assert set(found["wape_pct"]) == {"ttft", "tpot", "e2e"}
    assert (found["requests"], found["warmup"]["requests"]) == (30, 10)
    assert found["overhead_us_per_layer"] == pytest.approx(10, abs=0.25)
    assert found["overhead_fitted_on"] == "run"
    assert found["overhead_halves"]["overhead_us_per_layer"] == pytest.approx(10, abs=1)
    assert found["peer_wape_pct"]["e2e"] == pytest.approx(5)
    assert found["plan_cost"] is None
    assert found["plans_compared"] is False
    assert Record.load(out / "predicted").config["backend"] == "simulated"
    assert {p.stem for p in out.glob("*.png")} == set(FIGURES_OF)


def said(report: Report) -> str:
    console = Console(width=200, file=StringIO())
    for part in tables(report):
        console.print(part)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def test_words_say_what_is_fitted_and_what_is_blind(folder: Path, tmp_path: Path) -> None:
    measured = read_folder(folder)
    config = configured(measured, {"cost": str(tmp_path / "cost.json")})
    own = compared(measured, config, overhead_of(measured, config))
    for words in ("fitted on run", "not blind", "second half (blind)", "LLMServingSim, same run"):
        assert words in said(own)
    other = replace(own, overhead=Overhead("another run", 10.0, None))
    assert "another run, so the figures above are blind" in said(other)
    given = compared(measured, config.model_copy(update={"overhead_us_per_layer": 10.0}))
    assert "10.0 µs a layer, as given" in said(given)
    for draw in (distributions, error_by_depth):
        check_layout(draw(given))


def test_a_record_as_the_measured_side(tmp_path: Path) -> None:
    cost = cost_file(tmp_path)
    as_measured(simulated(trace(), cost)).save(tmp_path / "record")
    measured = of_record(Record.load(tmp_path / "record"), "record")
    config = configured(measured, {"cost": str(cost)})
    same = document(compared(measured, config))
    assert same["plans_compared"] is True
    assert same["first_difference"] is None
    assert same["plan_cost"]["error_pct"] == pytest.approx(0, abs=1e-6)
    assert same["error_pct"]["itl"]["p99"] == pytest.approx(0, abs=1e-6)
    slower = compared(measured, config.model_copy(update={"overhead_us_per_layer": 200.0}))
    assert "Plans differ from step" in said(slower)
    assert "The measured plan priced" in said(slower)


def test_a_cost_from_elsewhere_is_named(tmp_path: Path) -> None:
    cost = cost_file(tmp_path)
    made = Calibration.load(cost)
    origin = replace(made.provenance, hardware="another CPU", lengthwise="0.0.1")
    replace(made, provenance=origin).save(cost)
    measured = of_record(as_measured(simulated(trace(5), cost)), "mine", trace(5))
    ready = predict(measured, configured(measured, {"cost": str(cost)})).ready
    differs = " ".join((*ready.notes, *other_origin(ready, measured)))
    assert "hardware another CPU, not this CPU" in differs
    assert "lengthwise 0.0.1" in differs


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "give one of TRACE"),
        (("chat", "--measured", "x"), "give one of TRACE"),
        (("--measured", "nowhere"), "no such file"),
        (("--vllm-bench", "nowhere"), "not a readable JSON file"),
        (("--measured", "x", "--limit", 3), "for a TRACE that is run here"),
        (("--measured", "x", "--load", 0.5), "for a TRACE that is run here"),
    ],
)
def test_mistakes_are_said(
    args: tuple[Any, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*args)
    assert done.exit_code != 0
    words = " ".join((done.output + str(done.exception)).replace("│", " ").split())
    assert message in words
    assert not list(tmp_path.iterdir()) or not list((tmp_path / "runs").iterdir())


def test_the_rate_of_a_load(tmp_path: Path) -> None:
    requests, cost = trace(rate=1.0), cost_file(tmp_path)
    measured = of_record(as_measured(simulated(requests, cost)), "mine", requests)
    config = configured(measured, {"cost": str(cost)})
    for load in (0.2, 0.6):
        faster, scale = at_load(requests, config, load)
        assert faster.span_s == pytest.approx(requests.span_s / scale)
        assert busy_share(simulated(faster, cost)) == pytest.approx(load, abs=0.01)
    with pytest.raises(MeasuredError, match="--load"):
        at_load(requests, config, 1.5)


def test_this_machine_from_profile_to_report(tmp_path: Path) -> None:
    """With a cost given: what is run here is what is simulated, request by request."""
    cost = cost_file(tmp_path)
    how = ("--model", "tiny", "--policy", "dynamic-padding", "--limit", 4, "--scale-lengths", 0.02)
    done = run(
        "chat", *how, "--cost", cost, "--json", "--rate-scale", 40, "--out", tmp_path / "out"
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    measured = Record.load(tmp_path / "out" / "measured")
    predicted = Record.load(tmp_path / "out" / "predicted")
    assert measured.config["backend"] == "measured"
    columns = ["arrival_s", "prompt_tokens", "output_tokens", "status"]
    assert measured.requests[columns].equals(predicted.requests[columns])
    assert measured.config["kv_blocks"] == predicted.config["kv_blocks"]
    assert measured.config["cuda_graphs"] is False
    assert found["requests"] == 4
    assert found["plans_compared"] is True
    assert found["profile_spread_pct"] is None
    assert found["measured"]["e2e"]["mean"] == pytest.approx(measured.summary["mean_e2el_ms"])
    assert any("calibrated for model llama-3.1-8b, not tiny" in note for note in found["notes"])
