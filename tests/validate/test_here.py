"""A profile of this machine as the cost of a layout."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from lengthwise.validate.here import Profiled
from lengthwise.validate.measured import MeasuredError
from serving.step import Features
from sim.fitted import FittedCost
from tests.sim.test_fit_steps import made_steps

FACTS = {
    "model": "tiny",
    "layers": 8,
    "hidden": 256,
    "hardware": "this CPU",
    "tp": 1,
    "dtype": "fp32",
    "versions": "none",
    "median_spread": 0.07,
}


def test_padded_and_packed_steps_have_costs_of_their_own(tmp_path: Path) -> None:
    """Alike in their sums, but one kernel takes twice as long: each fit knows its own."""
    rows = made_steps(400)
    plain = pd.DataFrame(rows.columns).assign(seconds=rows.seconds, kind="mixed", prepare_s=0.0)
    padded = plain.assign(seconds=2 * plain["seconds"], kind="padded decode")
    path = tmp_path / "profile.parquet"
    pd.concat([plain, padded]).to_parquet(path)
    made = Profiled(path, FACTS)
    assert made.spread == 0.07
    step = Features(*(int(rows.columns[name][0]) for name in Features._fields))
    costs = {
        layout: FittedCost.load(made.cost_of(layout, tmp_path / layout))
        for layout in ("packed", "longest")
    }
    assert costs["packed"].seconds(step) == pytest.approx(rows.seconds[0], rel=0.05)
    assert costs["longest"].seconds(step) == pytest.approx(2 * rows.seconds[0], rel=0.05)
    assert costs["packed"].calibration.provenance.hardware == "this CPU"
    plain.to_parquet(path)
    with pytest.raises(MeasuredError, match="0 steps for layout limit"):
        made.cost_of("limit", tmp_path / "none")
