"""Fit the terms of a step's time to measured steps, and say how far held-out steps are from it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from sim.fitted import REGIONS, Calibration, Error, Provenance, regions
from sim.hull import hull_of
from sim.step_rows import StepRows
from sim.terms import FAR_KEYS, Points, Terms
from sim.uneven_rows import UnevenRows

Array = NDArray[np.float64]

SLOT_KNOTS = (
    *(1, 2, 4, 8),
    *range(16, 321, 16),
    *range(352, 513, 32),
    *range(576, 1025, 64),
    *range(1152, 2049, 128),
    *(2**i for i in range(12, 18)),
)
"""Where the slots' curve may bend: kernels work in tiles of 16 to 128 tokens, so time climbs in
stairs, and a curve that had to be convex would miss them."""

CHUNK_KNOTS = (16, 64, 128, 256, 512, *(2**i for i in range(10, 18)))
PAIR_KNOTS = tuple(2**i for i in range(8, 31))
ROW_KNOTS = (8, 16, 32, 64, 128, 256, 512)

FOLDS = 5
LEAST = 5
"""Rows between two bends of a curve."""
ROUNDS = 3
ROBUST = 0.03
"""Rows whose relative error is well over this count less, so that a hiccup bends nothing."""
QUANTILES = 101


class Design:
    """The terms as columns: time = columns · coefficients, all coefficients at least 0.

    A curve is a sum of ramps, one between each two bends, from 0 to 1; with coefficients of at
    least 0 it never falls. A tail's is a sum of tents, one over each bend, and may fall: with more
    rows there is more to do while the longest goes on. What no row can tell (a term without rows)
    stays 0.
    """

    def __init__(self, columns: dict[str, NDArray[np.int64]]) -> None:
        """Choose the bends that the rows support."""
        slots, chunk, _, pairs, rows, mixed = _inputs(columns)
        decode = ~(columns["prefill_slots"] > 0)
        uneven = columns["decode_longest"] * rows > pairs
        self.knots = {
            "slots": _supported(slots, SLOT_KNOTS),
            "prefill_slots": _supported(columns["prefill_slots"], CHUNK_KNOTS),
            "chunk_kv": _supported(chunk, CHUNK_KNOTS),
            "decode_pairs": _supported(pairs[decode], PAIR_KNOTS),
            "mixed_pairs": _supported(pairs[mixed], PAIR_KNOTS),
            "mixed_rows": _supported(rows[mixed], ROW_KNOTS),
            "far_rows": _supported(rows[mixed & (pairs > FAR_KEYS * rows)], ROW_KNOTS),
            "decode_tail": _supported(rows[decode & uneven], ROW_KNOTS),
            "mixed_tail": _supported(rows[mixed & uneven], ROW_KNOTS),
        }
        self.names = [name for name, _ in self._parts(columns)]

    def matrix(self, columns: dict[str, NDArray[np.int64]]) -> Array:
        """The columns of some steps, shape [steps, coefficients]."""
        return np.stack([part for _, part in self._parts(columns)], axis=1)

    def _parts(self, columns: dict[str, NDArray[np.int64]]) -> Iterator[tuple[str, Array]]:
        slots, chunk, keys, pairs, rows, mixed = _inputs(columns)
        prefill = columns["prefill_slots"] > 0
        kv, mean = columns["prefill_kv"].astype(np.float64), pairs / np.maximum(rows, 1)
        yield "step", np.ones(len(slots))
        yield from self._ramps("slots", slots, np.ones(len(slots)))
        yield "sampled_row", columns["sampled_rows"].astype(np.float64)
        yield "prefill", prefill.astype(np.float64)
        yield from self._ramps("prefill_slots", columns["prefill_slots"], prefill)
        yield "prefill_pair", columns["prefill_computed_pairs"].astype(np.float64)
        yield "chunk_kv", kv
        yield from self._ramps("chunk_kv", chunk, kv)
        yield "key", np.where(prefill, np.maximum(keys, mean), 0.0)
        yield "decode_row", np.where(prefill, 0.0, rows)
        yield from self._ramps("decode_pairs", pairs, ~prefill)
        yield "mixed_row", np.where(mixed, rows, 0.0)
        yield from self._ramps("mixed_pairs", pairs, mixed)
        yield from self._ramps("mixed_rows", rows, np.where(mixed, mean, 0.0))
        far = np.where(mixed, np.maximum(mean - FAR_KEYS, 0.0), 0.0)
        yield from self._ramps("far_rows", rows, far)
        longest = columns["decode_longest"].astype(np.float64)
        yield from self._tents("decode_tail", rows, np.where(prefill, 0.0, longest - mean))
        over = np.maximum(keys, longest) - np.maximum(keys, mean)
        yield from self._tents("mixed_tail", rows, np.where(mixed, over, 0.0))

    def _ramps(self, name: str, x: Any, weight: Any) -> Iterator[tuple[str, Array]]:
        knots = self.knots[name]
        for low, high in pairwise(knots):
            yield f"{name}:{high}", np.clip((x - low) / (high - low), 0.0, 1.0) * weight

    def _tents(self, name: str, x: Any, weight: Any) -> Iterator[tuple[str, Array]]:
        knots = self.knots[name][1:]
        for i, knot in enumerate(knots):
            yield f"{name}:{knot}", np.interp(x, knots, np.eye(len(knots))[i]) * weight

    def terms(self, coefficients: Array) -> Terms:
        """The terms that a vector of coefficients stands for."""
        by_name = dict(zip(self.names, (float(c) for c in coefficients), strict=True))
        values: dict[str, Any] = {n: v for n, v in by_name.items() if ":" not in n}
        base = values.pop("chunk_kv")
        for name, knots in self.knots.items():
            start = base if name == "chunk_kv" else 0.0
            found = [by_name[f"{name}:{k}"] for k in knots[1:]]
            tail = name.endswith("_tail")
            values[name] = _tops(knots, found) if tail else _points(knots, start, found)
        return Terms(**values)


def _points(knots: tuple[float, ...], start: float, rises: list[float]) -> Points:
    """A curve from its rises; after its last bend it goes on as its upper half does on average."""
    if len(knots) < 2:
        return Points((0.0, 1.0), (start, start), 0.0)
    heights = np.concatenate([[start], start + np.cumsum(rises)])
    end = knots[-1]
    middle = float(np.interp(end / 2, knots, heights))
    slope = (float(heights[-1]) - middle) / (end / 2)
    return Points(tuple(float(k) for k in knots), tuple(float(h) for h in heights), slope)


def _tops(knots: tuple[float, ...], heights: list[float]) -> Points:
    """A curve from its heights at the bends, level before the first and after the last."""
    if not heights:
        return Points()
    return Points(knots, (heights[0], *heights), 0.0)


def _inputs(
    columns: dict[str, NDArray[np.int64]],
) -> tuple[Array, Array, Array, Array, Array, NDArray[np.bool_]]:
    """Slots, mean chunk, mean keys of a prompt, decode pairs and rows; which steps are mixed."""
    prompts = np.maximum(columns["prefill_rows"], 1)
    return (
        (columns["prefill_slots"] + columns["decode_slots"]).astype(np.float64),
        columns["prefill_slots"] / prompts,
        columns["prefill_kv"] / prompts,
        columns["decode_computed_pairs"].astype(np.float64),
        columns["decode_rows"].astype(np.float64),
        (columns["prefill_slots"] > 0) & (columns["decode_rows"] > 0),
    )


def _supported(x: Any, candidates: tuple[int, ...]) -> tuple[float, ...]:
    """0, the candidates with enough rows below them, and the largest value."""
    values = np.sort(np.asarray(x, np.float64))
    values = values[values > 0]
    if not values.size:
        return (0.0,)
    knots, top = [0.0], float(values[-1])
    for k in candidates:
        inside = np.count_nonzero((values > knots[-1]) & (values <= k))
        if k < top and inside >= LEAST:
            knots.append(float(k))
    return (*knots, top)


def solve(design: Design, columns: dict[str, NDArray[np.int64]], seconds: Array) -> Array:
    """Coefficients of at least 0 that minimise relative errors, large errors counting less."""
    matrix = design.matrix(columns) / seconds[:, None]
    size = np.maximum(matrix.max(axis=0), 1e-300)
    matrix = matrix / size
    weight = np.ones(len(seconds))
    for _ in range(ROUNDS + 1):
        found, _ = nnls(matrix * weight[:, None], weight, maxiter=50 * matrix.shape[1])
        weight = (1.0 + ((matrix @ found - 1.0) / ROBUST) ** 2) ** -0.25
    coefficients: Array = found / size
    return coefficients


def with_uneven(rows: StepRows, uneven: UnevenRows, layers: int) -> StepRows:
    """More rows: uneven steps, each as long as a fit of `rows` says that the even one is, and more.

    Args:
        rows: measured steps.
        uneven: how much longer attention takes than in the even step, of one layer.
        layers: of the model.
    """
    design = Design(rows.columns)
    even = design.matrix(uneven.even()) @ solve(design, rows.columns, rows.seconds)
    seconds = even + layers * uneven.longer_s
    return StepRows(
        {n: np.concatenate([c, uneven.columns[n]]) for n, c in rows.columns.items()},
        np.concatenate([rows.seconds, seconds]),
        f"{rows.source} and {uneven.source}",
        rows.facts,
        made=len(seconds),
    )


def held_out(rows: StepRows, seed: int = 0) -> Array:
    """Predicted / measured of every row, each from a fit on the other folds, shape [rows]."""
    fold = np.random.default_rng(seed).permutation(len(rows)) % FOLDS
    ratio = np.zeros(len(rows))
    for f in range(FOLDS):
        rest = {n: c[fold != f] for n, c in rows.columns.items()}
        test = {n: c[fold == f] for n, c in rows.columns.items()}
        design = Design(rest)
        found = solve(design, rest, rows.seconds[fold != f])
        ratio[fold == f] = design.matrix(test) @ found / rows.seconds[fold == f]
    return ratio


def calibrate(rows: StepRows, provenance: Provenance) -> Calibration:
    """Fit measured steps; the error is that of k folds, the terms are fitted on all rows.

    Rows that were made lie near the fit that they are made of, so they are not in the error.
    """
    measured = slice(0, len(rows) - rows.made)
    ratio = held_out(rows)[measured]
    error = np.abs(ratio - 1.0)
    every = regions(rows.columns)
    members = {region: inside[measured] for region, inside in every.items()}
    levels = np.linspace(0.0, 1.0, QUANTILES)
    design = Design(rows.columns)
    terms = design.terms(solve(design, rows.columns, rows.seconds))
    return Calibration(
        terms=terms,
        provenance=provenance,
        error=Error(
            folds=FOLDS,
            mean=float(error.mean()),
            median=float(np.median(error)),
            p90=float(np.quantile(error, 0.9)),
            regions={r: float(error[members[r]].mean()) for r in REGIONS if members[r].any()},
            residuals={
                r: tuple(
                    round(float(q), 5) for q in np.quantile(1.0 / ratio[members[r]] - 1.0, levels)
                )
                for r in REGIONS
                if members[r].any()
            },
        ),
        hulls={
            r: hull_of(r, {n: c[every[r]] for n, c in rows.columns.items()})
            for r in REGIONS
            if every[r].any()
        },
    )
