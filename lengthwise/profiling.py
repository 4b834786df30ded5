"""A profile of a model on this machine: the grid that fits, timed, and written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

Bar = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Makes a bar for so many timings."""


def take_profile(
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
    repeats: int = 5,
    seed: int = 0,
    said: Callable[[str], None] = lambda text: None,
    bar: Bar,
) -> dict[str, Any]:
    """Time single steps over a grid of shapes into `out`; goes on where it was interrupted.

    Options are those of `lengthwise profile`; `said` is told what is about to be timed.

    Returns:
        What was measured on what, `rows`, `repeats`, and `median_spread` of the repeats of a step.

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
    facts = p.describe(engine, not full, cells)
    said(
        f"{shape.name} on {facts['hardware']}, {facts['dtype']}, {facts['attention']} "
        f"attention: {len(cells)} steps, {repeats} times each"
    )
    measuring = p.Profiler(engine, cells)
    with bar(len(cells) * repeats) as told:
        times = p.measure(measuring, out, facts, repeats, seed, told)
    columns = p.table(measuring, times)
    p.write(out, columns, facts)
    spread = sorted(columns["spread"])[len(cells) // 2]
    return {**facts, "rows": len(cells), "repeats": repeats, "median_spread": spread}
