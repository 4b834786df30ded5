"""An overhead that a run was made with is found again; ranges; GPUs that others measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lengthwise.validate.compare import compare, light, peer_wape
from lengthwise.validate.folder import read_folder
from lengthwise.validate.measured import Measured, MeasuredError
from lengthwise.validate.overhead import FINE_US, fit_overhead, overhead_of
from lengthwise.validate.predict import DRAWS, configured, drawn, predict
from lengthwise.validate.report import ranges
from sim.fit_steps import calibrate, with_uneven
from sim.fitted import Provenance
from sim.step_rows import read_rows
from sim.uneven_rows import read_uneven
from tests.shared import shared
from tests.validate.made import as_vllm, cost_file, trace, write_folder


def made(folder: Path, overhead_us: float, cost: Path) -> Measured:
    requests = trace()
    record = as_vllm(requests, cost, overhead_us_per_layer=overhead_us)
    return read_folder(write_folder(folder / f"run-{overhead_us:g}", record, requests))


@pytest.mark.parametrize("overhead_us", [-7.5, 0.0, 7.3, 48.0])
def test_the_overhead_of_a_run_is_found_again(overhead_us: float, tmp_path: Path) -> None:
    cost = cost_file(tmp_path)
    measured = made(tmp_path, overhead_us, cost)
    config = configured(measured, {"cost": str(cost)})
    found = overhead_of(measured, config)
    assert found.us_per_layer == pytest.approx(overhead_us, abs=FINE_US)
    assert found.halves is not None
    assert found.halves.overhead_us == pytest.approx(overhead_us, abs=2 * FINE_US)
    assert (found.halves.first.requests, found.halves.second.requests) == (20, 20)
    again = compare(measured, predict(measured, config, found.us_per_layer).record)
    assert again.error["e2e"]["mean"] == pytest.approx(0, abs=0.01)


def test_only_the_requests_behind_the_warm_up_count(tmp_path: Path) -> None:
    cost = cost_file(tmp_path)
    measured = made(tmp_path, 20.0, cost)
    measured.requests.loc[:9, "e2e_s"] += 100.0  # a slow start that no overhead explains
    config = configured(measured, {"cost": str(cost)})
    assert overhead_of(measured, config, 10).us_per_layer == pytest.approx(20, abs=FINE_US)


def test_what_no_overhead_explains_is_said(tmp_path: Path) -> None:
    cost = cost_file(tmp_path)
    measured = made(tmp_path, 0.0, cost)
    measured.requests["e2e_s"] *= 1e4
    with pytest.raises(MeasuredError, match="does not make up"):
        fit_overhead(measured, configured(measured, {"cost": str(cost)}))


def test_ranges_are_seeded_and_lie_within_the_draws(tmp_path: Path) -> None:
    cost = cost_file(tmp_path)  # its decodes are off by -10% or +20%
    measured = made(tmp_path, 0.0, cost)
    ready = predict(measured, configured(measured, {"cost": str(cost)})).ready
    draws = [compare(measured, r).predicted for r in drawn(ready, measured, 3)]
    assert len(draws) == DRAWS >= 20
    found = ranges(draws)
    assert found is not None
    means = np.array([d["tpot"]["mean"] for d in draws], np.float64)
    assert found["tpot"]["mean"] == pytest.approx(tuple(np.percentile(means, [5, 95])))
    assert 1.05 < means.max() / means.min() < 1.4
    again = [compare(measured, r).predicted for r in drawn(ready, measured, 3)]
    assert again == draws
    assert ranges([]) is None


@pytest.mark.shared
@pytest.mark.parametrize(
    ("gpu", "uneven", "limits"),
    [
        ("rtx4090", True, {"ttft": 0.005, "tpot": 0.0125, "e2e": 0.004}),
        ("rtxpro6000", False, {"ttft": 0.02, "tpot": 0.02, "e2e": 0.01}),
        ("rtxpro6000", True, {"ttft": 0.02, "tpot": 0.02, "e2e": 0.0125}),
    ],
)
def test_gpus_that_others_measured(
    gpu: str, uneven: bool, limits: dict[str, float], tmp_path: Path
) -> None:
    """vLLM on two GPUs, from tables of their kernels and the runs' own settings.

    Request by request they are nearer than another simulator's predictions of the same runs.
    """
    table = shared("truth", "llmservingsim-calibration", f"{gpu}_llama3.1-8b_tp1.iterations.csv")
    folder = shared("truth", "llmservingsim-vllm-e2e", f"{gpu}_llama3.1-8b_tp1")
    cost = tmp_path / "cost.json"
    rows = read_rows(table)
    if uneven:
        beside = table.with_name(table.name.replace("iterations", "skew"))
        rows = with_uneven(rows, read_uneven(beside, forwards=3), layers=32)
    calibrate(rows, Provenance()).save(cost)
    measured = read_folder(folder)
    config = configured(measured, {"cost": str(cost)})
    warmup = np.arange(len(measured)) >= (20 if gpu == "rtx4090" else 0)
    overhead = fit_overhead(measured, config, warmup)
    record = predict(measured, config, overhead).record
    found = compare(measured, record, warmup)
    peer = peer_wape(measured, warmup)
    assert peer is not None
    for name, limit in limits.items():
        mean, p99, wape = found.error[name]["mean"], found.error[name]["p99"], found.wape[name]
        assert mean is not None
        assert abs(mean) <= 0.01
        assert p99 is not None
        assert abs(p99) <= 0.04
        assert wape is not None
        assert wape <= limit
        assert wape < (peer[name] or 0)
    if gpu == "rtxpro6000":
        quiet = compare(measured, record, light(measured)).error["ttft"]["mean"]
        assert quiet is not None
        assert abs(quiet) <= 0.1
