"""The convex hull of measured steps: is another step inside what was measured?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

AXES = {
    "decode": ("decode_rows", "decode_computed_pairs"),
    "prefill": ("prefill_slots", "prefill_kv"),
    "mixed": ("prefill_slots", "prefill_kv", "decode_rows", "decode_computed_pairs"),
}
"""The sums that span a region: the others follow from them, nearly."""

_SLACK = 1e-6


@dataclass(frozen=True)
class Hull:
    """Half spaces whose common part is the hull: normal · (x / scale) ≤ offset."""

    axes: tuple[str, ...]
    scale: tuple[float, ...]
    normals: tuple[tuple[float, ...], ...]
    offsets: tuple[float, ...]

    def outside(self, columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_]:
        """Which points are outside, shape [points]."""
        points = np.stack([np.asarray(columns[a], np.float64) for a in self.axes], axis=1)
        points /= np.asarray(self.scale)
        out = np.zeros(len(points), bool)
        for normal, offset in zip(self.normals, self.offsets, strict=True):
            out |= points @ np.asarray(normal) > offset + _SLACK
        return out


def hull_of(region: str, columns: Mapping[str, NDArray[np.int64]]) -> Hull:
    """The hull of a region's measured steps; their bounding box where they are flat."""
    from scipy.spatial import ConvexHull, QhullError  # only who makes a hull waits for SciPy

    axes = AXES[region]
    points = np.stack([np.asarray(columns[a], np.float64) for a in axes], axis=1)
    scale = np.maximum(points.max(axis=0), 1.0)
    unit = points / scale
    try:
        equations = np.unique(np.round(ConvexHull(unit).equations, 9), axis=0)
    except (QhullError, ValueError):
        equations = _box(unit)
    return Hull(
        axes,
        tuple(float(s) for s in scale),
        tuple(tuple(float(v) for v in row[:-1]) for row in equations),
        tuple(float(-row[-1]) for row in equations),
    )


def _box(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half spaces of the smallest box, as Qhull writes them: normal and minus offset."""
    eye = np.eye(points.shape[1])
    return np.vstack(
        [
            np.column_stack([eye, -points.max(axis=0)]),
            np.column_stack([-eye, points.min(axis=0)]),
        ]
    )
