"""This machine as the measured side: profile it, choose a rate, run the trace on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lengthwise.api import run, whole
from lengthwise.config import RunConfig
from lengthwise.glimpse import Progress
from lengthwise.on_model import How, run_on_model
from lengthwise.prepare import prepare
from lengthwise.profiling import Profiling
from lengthwise.validate.measured import Measured, MeasuredError
from lengthwise.validate.of_record import of_record
from lengthwise.validate.predict import busy_share
from sim.fit_steps import calibrate
from sim.fitted import Provenance, own_version
from sim.models import load_model
from sim.step_rows import LEAST_ROWS, read_rows
from traces.trace import Trace

ROUNDS = 4
"""Timings of each step before a run, and again behind it, so that drift falls on both alike."""


@dataclass(frozen=True)
class Profiled:
    """A profile of this machine."""

    path: Path
    facts: dict[str, Any]

    @property
    def spread(self) -> float:
        """How far three repeats of a step lie apart, median over steps."""
        return float(self.facts["median_spread"])

    def cost_of(self, layout: str, out: Path) -> Path:
        """Fit the cost of steps in a layout into `out`, which is returned.

        Padded steps run through other attention kernels than packed ones, so each has its own
        fit; a single whole prompt is the same step in both.

        Raises:
            MeasuredError: the profile has too few such steps.
        """
        rows = read_rows(self.path)
        kind = pd.read_parquet(self.path, columns=["kind"])["kind"]
        padded = kind.str.startswith("padded").to_numpy()
        kept = ~padded if layout == "packed" else padded | (kind == "prefill").to_numpy()
        if kept.sum() < LEAST_ROWS:
            raise MeasuredError(
                f"the profile has {kept.sum()} steps for layout {layout}, and a fit needs "
                f"{LEAST_ROWS}; give --cost FILE"
            )
        columns = {name: column[kept] for name, column in rows.columns.items()}
        chosen = replace(rows, columns=columns, seconds=rows.seconds[kept])
        names = ("model", "layers", "hidden", "hardware", "tp", "dtype", "versions")
        made = Provenance(
            rows=len(chosen),
            source=rows.source,
            date=rows.facts.get("date"),
            lengthwise=own_version(),
            **{name: self.facts[name] for name in names},
        )
        calibrate(chosen, made).save(out)
        return out


def profiling(
    folder: Path, model: str, how: How, block_size: int | None, longest: int
) -> Profiling:
    """A profile of the model here, to be taken: `profile.parquet` in `folder`.

    Sequences are timed to twice the power of two behind `longest`, tokens.
    """
    return Profiling(
        folder / "profile.parquet",
        model=model,
        device=how.device,
        dtype=how.dtype,
        attention=how.attention,
        weights=how.weights,
        block_size=block_size,
        max_model_len=min(2 << (longest - 1).bit_length(), load_model(model).max_positions),
    )


def at_load(trace: Trace, config: RunConfig, load: float) -> tuple[Trace, float]:
    """The trace at the rate at which its predicted busy time is that share of its span.

    Found by halving the interval of rates, since more load is more busy time.

    Returns:
        The trace, and the factor on its rate.

    Raises:
        MeasuredError: a share outside (0, 1), or arrivals that are all at once.
    """
    if not 0 < load < 1:
        raise MeasuredError(f"--load {load:g}: give a share over 0 and below 1")
    if trace.span_s == 0:
        raise MeasuredError(f"--load: all requests of {trace.name} arrive at once; no rate fits")

    def share(scale: float) -> float:
        faster = trace.at_rate(scale)
        return busy_share(run(prepare(config, faster), faster))

    low = high = 1.0
    while share(high) < load:
        low, high = high, 4 * high
        if high > 1e9:
            raise MeasuredError(f"--load {load:g}: no rate keeps the engine that busy")
    while share(low) > load:
        low, high = low / 4, low
    for _ in range(12):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if share(middle) < load else (low, middle)
    scale = (low * high) ** 0.5
    return trace.at_rate(scale).noted(f"arrivals × {scale:.4g} for a load of {load:g}"), scale


def run_here(
    trace: Trace,
    config: RunConfig,
    how: How,
    simulated: dict[str, Any],
    load: float | None,
    progress: Progress | None,
) -> Measured:
    """Run the trace on this machine's model, at its own rate or at a load.

    Args:
        trace: what is run, its lengths scaled already.
        config: how it is run; it names the model.
        how: on what.
        simulated: fields of the simulation, its cost among them, by which a load is found.
        load: share of the time that steps are to take.
        progress: told how the run stands.
    """
    if load is not None:
        trace, _ = at_load(trace, config.model_copy(update=simulated), load)
    record = whole(run_on_model(config, trace, replace(how, scale_lengths=None), progress))
    return of_record(record, f"{trace.name} on {record.config['device']}", trace)
