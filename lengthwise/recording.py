"""What is written down of a simulated run while it goes on, and the record that comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthwise.prepare import Prepared
from serving.assemble import Assembled, Assembly
from serving.keep import InFolder, InMemory, Keep, Nowhere
from serving.recorder import SETTLE, Columns, Recorder, Sink
from serving.totals import ExactSum
from sim.fitted import FittedCost
from traces import Trace

FEWEST = 1 << 10
"""Rows of a lot, at least: below, making columns takes longer than what it saves is worth."""


class Recording:
    """The recorders of a run, one a replica, and what is made of what they hand on."""

    def __init__(self, ready: Prepared, trace: Trace, folder: Path | None = None) -> None:
        """Begin with nothing run.

        Args:
            ready: the run.
            trace: its requests.
            folder: where steps and events are written as they come; None: kept in memory. Where
                `--record` says so they go nowhere.
        """
        members = ready.members or (ready,)
        count = len(members)
        keep: Keep = Nowhere()
        if ready.config.record == "full":
            keep = InMemory(count) if folder is None else InFolder(folder, count)
        costs: list[Any] = [member.cost for member in members]
        self._assembly = Assembly(
            trace,
            count,
            keep,
            [getattr(cost, "flops", None) for cost in costs],
            [getattr(cost, "bytes", None) for cost in costs],
        )
        self._fitted = {n: cost for n, cost in enumerate(costs) if isinstance(cost, FittedCost)}
        self._outside, self._outside_s = 0, ExactSum()
        lot = max(SETTLE // count, FEWEST)
        self.recorders = [Recorder(self._sink(replica), lot) for replica in range(count)]

    def _sink(self, replica: int) -> Sink:
        def take(steps: Columns, events: NDArray[np.int64], waits: Mapping[int, float]) -> None:
            if replica in self._fitted:
                outside = self._fitted[replica].outside(steps)
                self._outside += int(np.count_nonzero(outside))
                self._outside_s.add((steps["end_s"] - steps["start_s"])[outside])
            self._assembly.take(replica, steps, events, waits)

        return take

    def finish(self) -> Assembled:
        """The run is over, or was interrupted: its tables."""
        refused = []
        for recorder in self.recorders:
            recorder.close()
            refused += recorder.refused
        return self._assembly.finish(refused)

    def notes(self) -> Sequence[str]:
        """How much of a run under a fitted cost lies outside the shapes that were measured."""
        if not self._outside:
            return ()
        seconds = self._outside_s.value
        return (f"the fitted cost was extrapolated in {self._outside:,} steps, {seconds:.3g} s",)
