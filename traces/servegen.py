"""ServeGen client files: per client, rates over time and length histograms, from which we draw."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from traces.arrivals import gamma_gaps, weibull_gaps
from traces.cells import json_number, number
from traces.documents import MAX_DOCUMENT
from traces.errors import TraceError
from traces.layout import Chunk, Layout, Options
from traces.source import Source
from traces.text_jsonl import parse_document
from traces.trouble import CellError, Trouble

MOST = 50_000_000
"""Requests that are drawn without a limit, or in one window."""
WINDOW_S = 600.0
"""Length of the last window, whose end no next one shows; ServeGen's windows have 600 s."""

LAWS = {"gamma": gamma_gaps, "weibull": weibull_gaps}
SHAPES = (0.05, 1000.0)
"""Shapes that a window may have; real ones lie between 0.2 and 10."""

_NAME = re.compile(r"chunk-(\d+)-(trace\.csv|dataset\.json)")


@dataclass(frozen=True)
class Histogram:
    """Token counts and their probabilities, shape [bins]."""

    tokens: NDArray[np.int64]
    share: NDArray[np.float64]

    def draw(self, n: int, rng: Generator) -> NDArray[np.int64]:
        """`n` lengths."""
        return rng.choice(self.tokens, n, p=self.share)


@dataclass(frozen=True)
class Window:
    """One client's traffic from `start` to `end`, seconds."""

    client: int
    start: float
    end: float
    rate: float
    law: str
    shape: float
    prompt: Histogram
    output: Histogram


def read_servegen(
    source: Source, layout: Layout, trouble: Trouble, options: Options
) -> Iterator[Chunk]:
    """Draw the requests of all clients in a folder, or of the one client whose file is given.

    In each window a client sends rate × length requests; their gaps have the window's law and
    shape, scaled to fill it (the files' scale parameters are not in seconds). Lengths are drawn
    from the latest histogram at or before the window, prompt and output apart.

    Raises:
        TraceError: a file that does not parse, or more than `MOST` requests, with a limit in one
            window.
    """
    trouble.unit = "request"
    windows = [w for client in _clients(source.path) for w in _windows(*client, trouble)]
    windows.sort(key=lambda w: (w.start, w.client))
    expected = sum(w.rate * (w.end - w.start) for w in windows)
    if options.limit is None and expected > MOST:
        raise TraceError(
            f"{source.name}: these clients send about {expected:,.0f} requests. "
            "Take the first ones with --limit."
        )
    for window in windows:  # each is drawn whole
        count = window.rate * (window.end - window.start)
        if count > MOST:
            raise TraceError(
                f"{source.name}: client {window.client} sends about {count:,.0f} requests from "
                f"{window.start:g} s to {window.end:g} s, over {MOST:,} in one window."
            )
    rng = np.random.default_rng(options.seed)
    drawn, start = 0, -1.0
    for window in windows:
        # All windows of one start are drawn before the limit may stop: they overlap in time.
        if options.limit is not None and drawn >= options.limit and window.start > start:
            break
        start = window.start
        chunk = _draw(window, rng, drawn)
        drawn += len(chunk.lines)
        if len(chunk.lines):
            yield chunk


def _draw(window: Window, rng: Generator, drawn: int) -> Chunk:
    length = window.end - window.start
    n = int(window.rate * length + rng.random())
    ends = np.cumsum(LAWS[window.law](window.shape)(n + 1, rng))
    values: dict[str, NDArray[Any]] = {
        "arrival": window.start + length * ends[:-1] / ends[-1],
        "prompt": window.prompt.draw(n, rng),
        "output": window.output.draw(n, rng),
        "tenant": np.full(n, f"client-{window.client}", object),
    }
    return Chunk(np.arange(drawn + 1, drawn + n + 1, dtype=np.int64), values)


def _clients(path: Path) -> Iterator[tuple[int, Path, Path]]:
    """Number, rate file and length file of each client."""
    if path.is_dir():
        names = (_NAME.fullmatch(p.name) for p in path.iterdir())
        numbers = sorted({int(m[1]) for m in names if m is not None})
        folder = path
    else:
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise TraceError(
                f"{path}: not named as a ServeGen client file. "
                "Give chunk-N-trace.csv, chunk-N-dataset.json, or their folder."
            )
        numbers, folder = [int(match[1])], path.parent
    if not numbers:
        raise TraceError(
            f"{path}: no chunk-N-trace.csv in this folder. Give a trace file, "
            "or a folder of ServeGen client files."
        )
    for n in numbers:
        yield n, folder / f"chunk-{n}-trace.csv", folder / f"chunk-{n}-dataset.json"


def _windows(
    client: int, trace_path: Path, lengths_path: Path, trouble: Trouble
) -> Iterator[Window]:
    """A client's windows in which it sends anything."""
    rows = list(_rates(Source.at(trace_path)))
    lengths = _histograms(Source.at(lengths_path))
    starts = sorted(lengths)
    for index, (start, rate, law, shape) in enumerate(rows):
        end = rows[index + 1][0] if index + 1 < len(rows) else start + WINDOW_S
        if rate <= 0 or not law:
            continue
        known = [s for s in starts if s <= start]
        if not known:
            trouble.left_out("no lengths known in their window", round(rate * (end - start)))
            continue
        prompt, output = lengths[known[-1]]
        yield Window(client, start, end, rate, law, shape, prompt, output)


def _rates(source: Source) -> Iterator[tuple[float, float, str, float]]:
    """Start, rate, law and shape of each window of a rate file (no header)."""
    last = -1.0
    for line, raw in source.lines():
        cells = raw.decode("utf-8", "backslashreplace").split(",")
        where = f"{source.name}, line {line}"
        if len(cells) != 6:
            raise TraceError(
                f"{where}: {len(cells)} cells instead of 6 (start, rate, CV, law, shape, scale)."
            )
        try:
            start, rate, shape = number(cells[0]), number(cells[1]), number(cells[4])
        except CellError as bad:
            raise TraceError(f"{where}: {raw[:60]!r} {bad.problem}. {bad.fix}.") from bad
        law = cells[3].strip().lower()
        if law and (law not in LAWS or not SHAPES[0] <= shape <= SHAPES[1]):
            raise TraceError(
                f"{where}: law {cells[3][:20]!r} with shape {shape:g}; "
                f"Gamma or Weibull with a shape of {SHAPES[0]:g} to {SHAPES[1]:g}."
            )
        if not start > last or rate < 0:
            raise TraceError(f"{where}: windows must rise and rates must not be negative.")
        last = start
        yield start, rate, law, shape


def _histograms(source: Source) -> dict[float, tuple[Histogram, Histogram]]:
    """Prompt and output histogram by the time from which they hold; empty ones are left out."""
    document = parse_document(source, MAX_DOCUMENT)
    if not isinstance(document, dict):
        raise TraceError(f"{source.name}: not an object of histograms by time.")
    result = {}
    for time, fields in document.items():
        pair = []
        for name in ("input_tokens", "output_tokens"):
            text = fields.get(name) if isinstance(fields, dict) else None
            where = f"{source.name}, time {time}, column {name}"
            if text is None:
                raise TraceError(f"{where}: missing. Only language workloads have both.")
            pair.append(_histogram(text, where))
        if pair[0] is not None and pair[1] is not None:
            try:
                result[number(time)] = (pair[0], pair[1])
            except CellError as bad:
                raise TraceError(f"{source.name}: time {time!r} {bad.problem}.") from bad
    return result


def _histogram(text: Any, where: str) -> Histogram | None:
    """A histogram written as a Python dict in a string, or as an object; None if it is empty."""
    try:
        bins = ast.literal_eval(text) if isinstance(text, str) else text
        pairs = [(int(k), json_number(v)) for k, v in bins.items()]
    except (ValueError, SyntaxError, AttributeError, TypeError, RecursionError, MemoryError) as bad:
        raise TraceError(f"{where}: not a histogram {{tokens: share, ...}}.") from bad
    if not pairs:
        return None
    tokens = np.array([k for k, _ in pairs if 0 <= k < 2**31], np.int64)
    share = np.array([v for _, v in pairs], np.float64)
    if len(tokens) != len(share) or share.min() < 0 or abs(share.sum() - 1) > 1e-3:
        raise TraceError(f"{where}: shares must be 0 or more and add up to 1.")
    return Histogram(tokens, share / share.sum())
