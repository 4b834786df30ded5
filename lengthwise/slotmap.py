"""The slot map: which row of the batch did what in which step, drawn step by step."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from lengthwise.stays import Stay, replica
from lengthwise.style import DECODE, HATCH, PALE, PREFILL, VERMILLION, WASTE, new_figure, styled
from serving.record import Record

EMPTY, IDLE, DECODING, PREFILLING, PADDING, HELD = range(6)
"""What a row may be in a step; `IDLE`: its request keeps it but takes no part in the step."""

_PAINT = {
    PREFILLING: ("prefill", PREFILL, ""),
    DECODING: ("decode", DECODE, ""),
    PADDING: ("padding", WASTE, HATCH),
    HELD: ("finished, row still computed", VERMILLION, "xxxx"),
    IDLE: ("in a seat, not in the step", PALE, ""),
}

MOST_STEPS = 2000


@dataclass(frozen=True, eq=False)
class SlotMap:
    """Rows by steps."""

    first: int
    """Number of the first step shown."""
    state: NDArray[np.int8]
    """What each row is in each step, shape [rows, steps]."""
    useful: dict[tuple[int, int], float] = field(default_factory=dict)
    """For a padded prefill, by row and step: the share of its slots that hold prompt tokens."""


def slot_map(record: Record, first: int = 0, steps: int = 120, number: int = 0) -> SlotMap:
    """Work out the map of some steps of one replica.

    A packed run has no fixed rows; each request is shown in the lowest row that is free.

    Args:
        record: the run.
        first: where to begin, counted in steps of the replica.
        steps: how many to show.
        number: which replica.

    Raises:
        ValueError: no such steps, or too many to tell apart.
    """
    if not 0 < steps <= MOST_STEPS:
        raise ValueError(f"a slot map shows 1 to {MOST_STEPS} steps, not {steps}")
    engine = replica(record, number)
    last = min(first + steps, len(engine.steps)) - 1
    if not 0 <= first <= last:
        raise ValueError(f"replica {number} has steps 0 to {len(engine.steps) - 1}, not {first}")
    window = engine.steps.iloc[first : last + 1]
    rows = _rows([s for s in engine.stays if s.begin <= last and s.hold >= first], last)
    height = max((row for row, _ in rows), default=0) + 1
    shown = SlotMap(first, np.zeros((height, last + 1 - first), np.int8))
    decodes = window["decode_rows"].to_numpy() > 0
    prefill_rows = window["prefill_rows"].to_numpy()
    widths = window["prefill_slots"].to_numpy() / np.maximum(prefill_rows, 1)
    for row, stay in rows:
        _paint(shown, row, stay, decodes, widths)
    return shown


def _rows(stays: list[Stay], last: int) -> list[tuple[int, Stay]]:
    """Each stay with its row: its own in a padded batch, otherwise the lowest free one."""
    free: list[int] = []
    taken: list[tuple[int, int]] = []  # by last step, row
    placed = []
    used = 0
    for stay in sorted(stays, key=lambda s: (s.begin, s.request)):
        if stay.row >= 0:
            placed.append((stay.row, stay))
            continue
        while taken and taken[0][0] < stay.begin:
            heapq.heappush(free, heapq.heappop(taken)[1])
        row = heapq.heappop(free) if free else used
        used = max(used, row + 1)
        heapq.heappush(taken, (stay.end, row))
        placed.append((row, stay))
    return placed


def _paint(
    shown: SlotMap, row: int, stay: Stay, decodes: NDArray[np.bool_], widths: NDArray[np.float64]
) -> None:
    """Fill in what one stay did in its row."""
    line, first = shown.state[row], shown.first
    count = len(line)

    def inside(step: int) -> int:
        return min(max(step - first, 0), count)

    line[inside(stay.begin) : inside(stay.end + 1)] = IDLE
    if stay.first is not None:
        part = slice(inside(stay.first + 1), inside(stay.end + 1))
        line[part][decodes[part]] = DECODING
    for skip in stay.skips:
        if first <= skip < first + count:
            line[skip - first] = IDLE
    for step, tokens in stay.chunks:
        if first <= step < first + count:
            line[step - first] = PREFILLING
            if stay.row >= 0:
                shown.useful[row, step - first] = tokens / widths[step - first]
    if stay.row >= 0:
        line[inside(stay.end + 1) : inside(stay.hold + 1)] = HELD


def _boxes(shown: SlotMap) -> dict[int, list[tuple[float, float, int]]]:
    """Left, right and row of the boxes of each state, runs of one state joined."""
    boxes: dict[int, list[tuple[float, float, int]]] = {state: [] for state in _PAINT}
    for row, line in enumerate(shown.state):
        bounds = [0, *(np.flatnonzero(np.diff(line)) + 1).tolist(), len(line)]
        for left, right in pairwise(bounds):
            state = int(line[left])
            if state == PREFILLING:
                for step in range(left, right):  # padding is on the left of the prompt
                    begin = step + 1 - shown.useful.get((row, step), 1.0)
                    boxes[PADDING] += [(step, begin, row)] if begin > step else []
                    boxes[PREFILLING].append((begin, step + 1, row))
            elif state != EMPTY:
                boxes[state].append((left, right, row))
    return boxes


def _draw(shown: SlotMap, ax: Axes) -> set[int]:
    """Draw a map into a panel, steps to the right and rows downwards; returns the states in it."""
    boxes = _boxes(shown)
    for state, (_, colour, hatch) in _PAINT.items():
        corners = [
            [(shown.first + x, row + y) for x, y in ((a, 0.06), (b, 0.06), (b, 0.94), (a, 0.94))]
            for a, b, row in boxes[state]
        ]
        ax.add_collection(
            PolyCollection(corners, facecolors=colour, edgecolors="white", lw=0.3, hatch=hatch)
        )
    ax.set_ylim(len(shown.state), 0)
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.grid(visible=False)
    return {state for state in boxes if boxes[state]}


def slot_maps(
    records: Mapping[str, Record], first: int = 0, steps: int = 120, width: float = 8.0
) -> Figure:
    """Slot maps of runs under each other, over the same steps of each one's replica 0.

    Raises:
        ValueError: as `slot_map`.
    """
    maps = {name: slot_map(record, first, steps) for name, record in records.items()}
    with styled():
        inches = [min(3.2, 0.4 + 0.14 * len(shown.state)) for shown in maps.values()]
        figure = new_figure(width, sum(inches) + 0.35 * len(maps) + 0.9)
        grid = figure.subplots(len(maps), 1, sharex=True, squeeze=False, height_ratios=inches)
        states: set[int] = set()
        for ax, (name, shown) in zip(grid[:, 0], maps.items(), strict=True):
            states |= _draw(shown, ax)
            ax.set_title(name)
        grid[-1, 0].set_xlim(first, first + max(m.state.shape[1] for m in maps.values()))
        grid[-1, 0].set_xlabel("step")
        figure.supylabel("row of the batch", size="medium")
        figure.legend(
            handles=[
                Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=label)
                for state, (label, colour, hatch) in _PAINT.items()
                if state in states
            ],
            loc="outside upper center",
            ncols=max(1, int(width / 1.6)),
        )
    return figure
