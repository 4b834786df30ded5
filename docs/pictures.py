"""Draws every picture of README.md and docs/ again: `make pictures`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lengthwise import plots
from lengthwise.api import replay
from lengthwise.slotmap import slot_maps
from lengthwise.style import save
from policies.compose import NAMED
from serving.record import Record
from traces import Trace

HERE = Path(__file__).resolve().parent
IMAGES = HERE / "images"
DEMO = HERE.parent / "runs" / "demo"
PNG = ("png",)


def main() -> None:
    """The demo's comparison, one of its runs over time, and slot maps of a few requests."""
    IMAGES.mkdir(exist_ok=True)
    records = {name: Record.load(DEMO / name) for name in NAMED}
    for name, draw in plots.FOR_COMPARISON.items():
        save(draw(records), IMAGES / name, PNG)
    for name, draw in plots.FOR_ONE.items():
        save(draw(records["bucketing"]), IMAGES / name, PNG)
    few = two_dozen()
    runs = {
        policy: replay(few, policy, cost="fixed", step_ms=50, max_num_seqs=8)
        for policy in ("dynamic-padding", "continuous")
    }
    save(slot_maps(runs, steps=130), IMAGES / "slots", PNG)


def two_dozen() -> Trace:
    """24 requests of mixed lengths within a second."""
    draw = np.random.default_rng(1)
    return Trace(
        np.sort(draw.random(24)),
        draw.integers(50, 1000, 24),
        draw.integers(5, 45, 24),
        name="two dozen",
    )


if __name__ == "__main__":
    main()
