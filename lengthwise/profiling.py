"""A profile of a model on this machine: the grid that fits, timed, and written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.grid import Cell
    from executor.profiler import Timing

Bar = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Makes a bar for so many timings."""


class Profiling:
    """A profile that grows by rounds: each times every step of the grid once more."""

    def __init__(
        self,
        out: Path,
        *,
        model: str = "tiny",
        device: str = "cpu",
        dtype: str | None = None,
        attention: str | None = None,
        weights: Path | None = None,
        block_size: int | None = None,
        full: bool = False,
        max_step_tokens: int | None = None,
        max_model_len: int | None = None,
        share: float | None = None,
        seed: int = 0,
    ) -> None:
        """Load the model and choose the steps; options are those of `lengthwise profile`.

        Timings that an earlier one left beside `out` count.

        Raises:
            ValueError: the user's mistake, with the flag, what was found and what to do.
        """
        from executor import profiler as p
        from executor.execute import Engine, Machine
        from executor.grid import make_grid
        from sim.models import load_model

        shape = load_model(model)
        engine = Engine(shape, Machine(device, dtype, attention, weights, seed), block_size)
        cells = make_grid(
            quick=not full,
            most_slots=max_step_tokens or (16384 if full else 2048),
            longest=max_model_len or shape.max_positions,
            kv_tokens=p.free_kv_tokens(engine, share or (0.25 if device == "cpu" else 0.8)),
            seed=seed,
        )
        self.out = out
        self.steps = len(cells)
        self.facts = p.describe(engine, not full, cells)
        self._profiler = p.Profiler(engine, cells)
        self._times: dict[Cell, list[Timing]] = {}
        self._seed = seed

    def rounds(self, count: int, bar: Bar) -> None:
        """Go on until every step has been timed `count` times."""
        from executor.profiler import measure

        with bar(self.steps * count) as told:
            self._times = measure(
                self._profiler, self.out, self.facts, count, self._seed, progress=told
            )

    def write(self) -> dict[str, Any]:
        """Write what there is by now to `out`.

        Returns:
            What was measured on what, `rows`, `repeats`, and `median_spread` of the repeats of a
            step.
        """
        from executor import profiler as p

        columns = p.table(self._profiler, self._times)
        p.write(self.out, columns, self.facts)
        spread = sorted(columns["spread"])[self.steps // 2]
        repeats = columns["repeats"][0]
        return {**self.facts, "rows": self.steps, "repeats": repeats, "median_spread": spread}

    def finish(self) -> dict[str, Any]:
        """Write it, and forget the single timings, of which there will be no more."""
        facts = self.write()
        self.out.with_name(self.out.name + ".partial").unlink(missing_ok=True)
        return facts
