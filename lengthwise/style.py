"""One look for every plot: sizes, colours that colour-blind readers can tell apart, and files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe & Ito's palette (https://jfly.uni-koeln.de/color/), without its yellow, which is too pale
# for lines.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#8A8A8A", "#E6E6E6"

PREFILL, DECODE, WASTE = BLUE, SKY, ORANGE
"""What slots are for, alike in every plot; waste is hatched too, so that grey print shows it."""
HATCH = "////"

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.7,
    "hatch.color": "#FFFFFF",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "svg.hashsalt": "lengthwise",  # the same figure gives the same file
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class Look:
    """How a run is drawn wherever it appears."""

    colour: str
    dash: Any  # a matplotlib line style: colour is never the only difference


_KNOWN = {
    "static": Look(BLACK, (0, (1, 1))),
    "dynamic-padding": Look(VERMILLION, (0, (4, 1.5))),
    "bucketing": Look(ORANGE, (0, (6, 1.5, 1, 1.5))),
    "token-aware": Look(PURPLE, (0, (3, 1, 1, 1, 1, 1))),
    "continuous": Look(SKY, "solid"),
    "chunked-prefill": Look(BLUE, (0, (4, 3))),
    "sglang": Look(GREEN, "solid"),
}
_DASHES: Sequence[Any] = ("solid", (0, (4, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
_COLOURS = (GREEN, BLUE, VERMILLION, PURPLE, ORANGE, SKY, BLACK)


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each run: a built-in policy always has its own, another one the next free."""
    wanted = list(names)
    others = [name for name in wanted if name not in _KNOWN]
    spare = {
        name: Look(_COLOURS[i % len(_COLOURS)], _DASHES[i % len(_DASHES)])
        for i, name in enumerate(others)
    }
    return {name: _KNOWN.get(name) or spare[name] for name in wanted}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of `width` × `height` inches that finds room for its labels itself."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def styled() -> Any:
    """A context in which figures are drawn and saved in this style."""
    return mpl.rc_context(STYLE)


def save(figure: Figure, path: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write a figure as `path` with each format's suffix, without a date in it.

    Args:
        figure: what to write.
        path: without suffix.
        formats: `png`, `svg` or `pdf`.
    """
    files = [path.with_name(f"{path.name}.{suffix}") for suffix in formats]
    with styled():
        layout = figure.get_layout_engine()
        if layout is not None:
            figure.dpi = mpl.rcParams["savefig.dpi"]  # text is as wide as in the file
            layout.execute(figure)
            figure.set_layout_engine(None)  # which would draw each file twice
        for file, suffix in zip(files, formats, strict=True):
            undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
            figure.savefig(file, format=suffix, metadata=undated.get(suffix))
    return files
