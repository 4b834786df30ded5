"""Draws every picture of README.md and docs/ again: `make pictures`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from lengthwise import plots
from lengthwise.api import load_trace, replay
from lengthwise.config import RunConfig
from lengthwise.planning.front import picture, table_of
from lengthwise.planning.plan import Asked, make_plan
from lengthwise.planning.settings import candidates
from lengthwise.plots_rate import against_rate
from lengthwise.report import report
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
    loaded = replay("chat", limit=1000, rate_scale=4, max_num_batched_tokens=2048)
    save(plots.composition(loaded, window=(5, 25)), IMAGES / "budget", PNG)
    save(against_rate(at_rates()), IMAGES / "rate", PNG)
    screenshot(report({name: records[name] for name in ("static", "bucketing", "continuous")}))
    few = two_dozen()
    runs = {
        policy: replay(few, policy, cost="fixed", step_ms=50, max_num_seqs=8)
        for policy in ("dynamic-padding", "continuous")
    }
    save(slot_maps(runs, steps=130), IMAGES / "slots", PNG)
    front()


def front() -> None:
    """What `plan` draws: settings of two GPUs at the highest rate that keeps an SLO."""
    base = RunConfig.of(trace="chat", slo="ttft_p99_ms=1000,tpot_p99_ms=50")
    settings = {
        "hardware": ["h100", "l40s"],
        "max_num_seqs": [16, 32, 64, 128, 256],
        "max_num_batched_tokens": [512, 1024, 2048, 8192],
    }
    asked = Asked(load_trace("chat", limit=400), candidates(base, settings))
    with TemporaryDirectory() as folder:
        plan = make_plan(asked, Path(folder))
    save(picture(plan, table_of(plan)), IMAGES / "front", PNG)


def at_rates() -> dict[str, list[Record]]:
    """The demo's workload from a quarter of its rate to five times it, under four policies."""
    rates = (0.25, 0.5, 1, 1.5, 2, 3, 4, 5)
    return {
        policy: [replay("chat", policy, limit=1000, rate_scale=rate) for rate in rates]
        for policy in ("dynamic-padding", "bucketing", "continuous", "chunked-prefill")
    }


def screenshot(html: str) -> None:
    """The top of a report as Chromium shows it; said, where there is none."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("report.png is not drawn again: chromium is not installed")
        return
    with TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        page.write_text(html, encoding="utf-8")
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += ["--window-size=1000,900", f"--screenshot={IMAGES / 'report.png'}"]
        subprocess.run([*command, page.as_uri()], check=True, capture_output=True)


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
