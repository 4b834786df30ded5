"""Times single steps over a grid, and writes them as the rows that a cost model is fitted to."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from executor.cache import page_bytes
from executor.graphs import capture_sizes
from executor.grid import Cell
from executor.inputs import Batch
from executor.memory import free_bytes
from executor.steps import Steps
from executor.tokens import Tokens
from serving.request import Request
from serving.step import PACKED, Features, Packed, Padded, Step, Work
from sim.graphs import pad_decode
from sim.step_rows import spread

if TYPE_CHECKING:
    from executor.execute import Engine

SCHEMA = 1


class ProfileError(ValueError):
    """A profile that cannot be taken or gone on with."""


class Timing(NamedTuple):
    """One repeat of one step, s."""

    seconds: float
    """From the launch to the end."""
    prepare_s: float
    """Making its inputs, before the launch."""


class _Decodes(NamedTuple):
    """The decodes of a made-up step."""

    rows: Sequence[tuple[Request, int]]

    def members(self) -> Sequence[tuple[Request, int]]:
        """All of them."""
        return self.rows

    def opening_run(self, steps: int) -> Sequence[int]:
        """None: its memory is taken before."""
        return [0] * steps


class Profiler:
    """An engine with memory for every cell of a grid.

    Args:
        engine: the loaded model.
        cells: the grid.
    """

    def __init__(self, engine: Engine, cells: Sequence[Cell]) -> None:
        self.cells, size = cells, engine.block_size
        self._rows = max(len(c.chunks) + len(c.contexts) for c in cells)
        self._longest = max(c.longest for c in cells) + 1
        lengths = np.full(self._rows, self._longest, np.int64)
        # room for the longest in every row; what is a prompt and what an output, each cell says
        self._tokens = Tokens(
            lengths, np.full_like(lengths, 64), engine.shape.vocab, device=engine.device
        )
        pages = max(_pages(c, size) for c in cells)
        captured: tuple[int, ...] = ()
        if engine.device.type == "cuda" and engine.backend.capturable:
            most = max((len(c.contexts) for c in cells if not c.width), default=0)
            captured = tuple(capture_sizes(most)) if most else ()
        self.graphs = bool(captured)
        self._steps = Steps(
            engine.model, engine.backend, self._tokens, pages, size, self._longest, captured
        )
        self._warm = False
        # not zeros: a GPU spends less power, and so less time, on those
        self._steps.cache.memory.normal_()

    def step(self, cell: Cell) -> Step:
        """The step of a cell, its requests' pages taken."""
        lengths = [c + n for c, n in cell.chunks] + list(cell.contexts)
        prompts = [cell.width] * len(lengths) if cell.width else lengths
        self._tokens.prompts[: len(lengths)] = prompts
        requests = [Request(i, 0.0, n, 64) for i, n in enumerate(prompts)]
        p = len(cell.chunks)
        works = tuple(Work(r, c, n, True) for r, (c, n) in zip(requests, cell.chunks, strict=False))
        decodes = list(zip(requests[p:], cell.contexts, strict=True))
        layout: Packed | Padded = PACKED
        if cell.width:
            layout = Padded(cell.width, tuple(requests))
        else:
            for request, context in decodes:
                self._steps.pager.place(Work(request, 0, context, True))
        count = len(requests)
        return Step(0, layout, works, _Decodes(decodes), (), cell.features, 0, count, 0)

    def time(self, cell: Cell) -> Timing:
        """Run a cell once.

        Raises:
            RuntimeError: the model computes something else than the step says.
        """
        step, counter = self.step(cell), self._steps.counter
        before = counter.slots, counter.pairs
        begin = time.perf_counter()
        batch = self._batch(step)
        launched = time.perf_counter()
        self._steps.runner.launch(batch).wait()
        seconds = time.perf_counter() - launched
        for request in (
            *(w.request for w in step.prefill),
            *(r for r, _ in step.decodes.members()),
        ):
            self._steps.pager.released(request)
        f = self.features(cell)
        counted = counter.slots - before[0], counter.pairs - before[1]
        right = (
            f.prefill_slots + f.decode_slots,
            f.prefill_computed_pairs + f.decode_computed_pairs,
        )
        if counted != right:
            raise RuntimeError(f"{cell}: the model computed {counted} slots and pairs, not {right}")
        return Timing(seconds, launched - begin)

    def warm_up(self) -> None:
        """Run all once: what is built or paged in for the first time is not a step's cost."""
        if not self._warm:
            for cell in self.cells:
                self.time(cell)
            self._warm = True

    def features(self, cell: Cell) -> Features:
        """What a step computes here: decodes alone are padded to a recorded size."""
        return pad_decode(cell.features) if self.graphs and not cell.width else cell.features

    def _batch(self, step: Step) -> Batch:
        batch = self._steps.inputs.batch(step)
        if batch is None:
            raise ProfileError("a cell without rows")
        return batch


def _pages(cell: Cell, size: int) -> int:
    lengths = [c + n for c, n in cell.chunks] + [c + 1 for c in cell.contexts]
    if cell.width:
        return len(lengths) * -(-(cell.width + 64) // size)
    return sum(-(-n // size) for n in lengths)


# Repeats, kept as they come ----------------------------------------------------------------------


def measure(
    profiler: Profiler,
    out: Path,
    facts: dict[str, Any],
    repeats: int,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> dict[Cell, list[Timing]]:
    """Time every cell `repeats` times, in rounds of shuffled order.

    In rounds, so that drift of the machine falls on all cells alike. Each timing is written to
    `<out>.partial` at once, from where a later call with the same facts and grid goes on.

    Args:
        profiler: the cells.
        out: where the profile will go.
        facts: what was measured on what; a `.partial` of other facts is refused.
        repeats: timings of each cell.
        seed: of the order.
        progress: told how many timings there are.

    Raises:
        ProfileError: a `.partial` of another profile.
    """
    cells, partial = profiler.cells, out.with_name(out.name + ".partial")
    head = {"schema": SCHEMA, "facts": facts, "cells": len(cells), "seed": seed}
    done = _resume(partial, head, len(cells))
    total = sum(len(times) for times in done)
    random = np.random.default_rng(seed)
    kept = [[i, *timing] for i, timings in enumerate(done) for timing in timings]
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in (head, *kept))
        file.flush()
        profiler.warm_up()
        for round_ in range(repeats):
            for i in random.permutation(len(cells)):
                if len(done[i]) > round_:
                    continue
                timing = profiler.time(cells[i])
                done[i].append(timing)
                total += 1
                file.write(json.dumps([int(i), *timing]) + "\n")
                file.flush()
                if progress is not None:
                    progress(total)
    return dict(zip(cells, done, strict=True))


def _resume(partial: Path, head: dict[str, Any], cells: int) -> list[list[Timing]]:
    """Timings that an earlier call left behind."""
    done: list[list[Timing]] = [[] for _ in range(cells)]
    if not partial.is_file() or not partial.stat().st_size:
        return done
    first, *lines = partial.read_text(encoding="utf-8").splitlines()
    if json.loads(first) != head:
        raise ProfileError(
            f"{partial}: left by a profile of something else (model, device, grid or versions); "
            "delete it, or give another --out"
        )
    for line in lines:
        if not line.endswith("]"):
            break  # the line that the interruption cut
        i, *timing = json.loads(line)
        done[i].append(Timing(*timing))
    return done


# The file ----------------------------------------------------------------------------------------


def table(profiler: Profiler, times: dict[Cell, list[Timing]]) -> dict[str, list[Any]]:
    """One row a cell: its features, the median of its timings, and their spread."""
    columns: dict[str, list[Any]] = {}
    for cell, timings in times.items():
        seconds = np.array([t.seconds for t in timings])
        median = float(np.median(seconds))
        row = {
            "kind": cell.kind,
            **profiler.features(cell)._asdict(),
            "seconds": median,
            "least_s": float(seconds.min()),
            "spread": spread(seconds),
            "repeats": len(timings),
            "prepare_s": float(np.median([t.prepare_s for t in timings])),
            "chunk_tokens": sum(n for _, n in cell.chunks),
            "longest_context": max((*(c for c, _ in cell.chunks), *cell.contexts)),
            "width": cell.width,
        }
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def write(out: Path, columns: dict[str, list[Any]], facts: dict[str, Any]) -> None:
    """The profile as Parquet, facts in its schema and, for people, in a JSON file beside it."""
    facts = facts | {"date": datetime.now(UTC).date().isoformat()}
    rows = pa.table(columns).replace_schema_metadata({"lengthwise": json.dumps(facts)})
    partial = out.with_name(out.name + ".new")
    pq.write_table(rows, partial)
    partial.replace(out)
    out.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def describe(engine: Engine, quick: bool, cells: Sequence[Cell]) -> dict[str, Any]:
    """What is measured, on what, with which versions."""
    known = engine.facts()
    packages = ("lengthwise", "torch", "numpy")
    versions = ", ".join(f"{p} {version(p)}" for p in packages)
    return {
        "model": engine.shape.name,
        "layers": engine.shape.layers,
        "hidden": engine.shape.hidden,
        "hardware": known["device"],
        "tp": 1,
        **{k: known[k] for k in ("dtype", "attention", "threads", "weights")},
        "block_size": engine.block_size,
        "versions": f"{versions}, Python {platform.python_version()}",
        "grid": "quick" if quick else "full",
        "kinds": sorted({c.kind for c in cells}),
    }


def free_kv_tokens(engine: Engine, share: float) -> int:
    """Tokens of KV cache that `share` of the free memory holds."""
    token = page_bytes(engine.shape, 1, engine.model.dtype)
    return int(free_bytes(engine.device) * share) // token
