"""Plots: the numbers behind them against slow counting, and nothing clipped or overlapping."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from lengthwise import plots
from lengthwise.levels import Level, edges, in_steps, span, waiting
from lengthwise.slotmap import DECODING, HELD, IDLE, PREFILLING, slot_map, slot_maps
from lengthwise.style import looks, save
from serving.record import Record
from tests.report.toy import toy

DRAIN = ("static", "dynamic-padding", "bucketing", "token-aware")
POLICIES = (*DRAIN, "continuous", "chunked-prefill")


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {
        name: toy(i, requests=30, padded=i < 4, config={"policy": name}).record
        for i, name in enumerate(POLICIES)
    }


# Levels


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10), st.integers(0, 5)), max_size=12),
    st.lists(st.integers(-5, 60), min_size=2, max_size=8, unique=True),
)
def test_levels_against_a_fine_grid(boxes: list[tuple[int, int, int]], cuts: list[int]) -> None:
    level = Level.of(
        [b[0] for b in boxes] + [b[0] + b[1] for b in boxes],
        [b[2] for b in boxes] + [-b[2] for b in boxes],
    )
    bounds = np.array(sorted(cuts), float)
    for i, (low, high) in enumerate(pairwise(bounds)):
        seconds = [
            sum(h for at, long, h in boxes if at <= second < at + long)
            for second in range(int(low), int(high))
        ]
        assert level.mean(bounds)[i] == pytest.approx(np.mean(seconds))
        assert level.peak(bounds)[i] == max(seconds)


def test_waiting_and_running_against_the_lives() -> None:
    run = toy(11, requests=20, trouble=0.4)
    record = run.record
    bounds = edges(record, 10**6)
    starts, ends = record.steps["start_s"].to_numpy(), record.steps["end_s"].to_numpy()
    middle = (bounds[1:] + bounds[:-1]) / 2
    inside = [(int(np.searchsorted(starts, t, side="right")) - 1) for t in middle]
    running = in_steps(record.steps, record.steps["running"]).mean(bounds)
    queue = waiting(record)
    for t, step, seen in zip(middle, inside, running, strict=True):
        busy = step >= 0 and ends[step] > t
        assert seen == pytest.approx(record.steps["running"][step] if busy else 0)
        if busy:
            # the table has who waited when the step was planned; more may have come since
            came = sum(starts[step] < x.arrival <= t for x in run.lives if x.replica >= 0)
            waits = queue.values[np.searchsorted(queue.times, t, side="right") - 1]
            assert waits == record.steps["waiting"][step] + came


def test_edges_and_span() -> None:
    record = toy(1).record
    low, high = span({"a": record})
    assert low == record.requests["arrival_s"].min()
    assert high == record.steps["end_s"].max()
    assert len(edges(record, 10)) == 11
    assert edges(record, 10**6, (0.5, 0.9))[[0, -1]].tolist() == [0.5, 0.9]
    assert span({}) == (0.0, 1.0)


# Slot maps


def test_slot_map_is_what_each_token_says() -> None:
    run = toy(21, requests=10, trouble=0.3)
    record = run.record
    shown = slot_map(record, 0, min(len(record.steps), 300))
    emitted = record.steps["decode_tokens"].to_numpy()[: shown.state.shape[1]]
    assert (shown.state == DECODING).sum(axis=0).tolist() == emitted.tolist()
    chunks = record.events[record.events["kind"] == "chunk"]
    for step in range(shown.state.shape[1]):
        busy = shown.state[:, step]
        assert (busy == PREFILLING).sum() == (chunks["step"] == step).sum()
        assert (busy > 0).sum() == record.steps["running"][step]
    part = slot_map(record, 7, 9)
    assert (part.state != 0).sum(axis=0).tolist() == (shown.state[:, 7:16] != 0).sum(
        axis=0
    ).tolist()


def padded_batch() -> Record:
    """Two rows of width 8 with 4 and 8 prompt tokens and 1 and 4 outputs, held until the end."""
    r = toy(0, requests=2, trouble=0.0).record
    steps = r.steps.iloc[[0, 0, 0, 0]].copy().reset_index(drop=True)
    steps["step"] = range(4)
    steps["prefill_rows"] = [2, 0, 0, 0]
    steps["prefill_slots"] = [16, 0, 0, 0]
    steps["decode_rows"] = [0, 2, 2, 2]
    kinds = ["admit", "chunk", "first", "finish", "leave", "admit", "chunk", "first", "finish"]
    events = r.events.iloc[[0] * 10].copy().reset_index(drop=True)
    events["kind"] = events["kind"].cat.set_categories(events["kind"].cat.categories)
    events.loc[:, "kind"] = [*kinds, "leave"]
    events["request"] = [0] * 5 + [1] * 5
    events["row"] = [0] * 5 + [1] * 5
    events["step"] = [0, 0, 0, 0, 3, 0, 0, 0, 3, 3]
    events["tokens"] = [0, 4, 0, 0, 3, 0, 8, 0, 0, 0]
    requests = r.requests.iloc[[0, 1]].copy()
    requests["request"] = [0, 1]
    requests["output_tokens"] = [1, 4]
    return Record({}, requests, steps, events)


def test_slot_map_of_a_padded_batch() -> None:
    shown = slot_map(padded_batch())
    assert shown.state.tolist() == [
        [PREFILLING, HELD, HELD, HELD],
        [PREFILLING, DECODING, DECODING, DECODING],
    ]
    assert shown.useful == {(0, 0): 0.5, (1, 0): 1.0}
    assert IDLE not in shown.state


def test_slot_map_of_steps_that_are_not_there() -> None:
    record = toy(1).record
    with pytest.raises(ValueError, match="shows 1 to 2000 steps, not 0"):
        slot_map(record, 0, 0)
    with pytest.raises(ValueError, match=r"replica 0 has steps 0 to \d+, not 100000"):
        slot_map(record, 100_000)


# Looks


def test_looks_differ_in_more_than_colour() -> None:
    look = looks([*POLICIES, "mine", "yours"])
    assert len({(x.colour, str(x.dash)) for x in look.values()}) == 8
    own = looks(str(i) for i in range(28))
    assert len({(x.colour, str(x.dash)) for x in own.values()}) == 28
    assert len({str(own[str(i)].dash) for i in range(4)}) == 4
    known = looks(POLICIES)
    assert len({str(x.dash) for x in known.values()}) == len(POLICIES)
    assert len({x.colour for x in known.values()}) == len(POLICIES)
    assert looks(["continuous"])["continuous"] == known["continuous"]


def draw(name: str, records: dict[str, Record], width: float) -> Figure:
    if name == "slots":
        return slot_maps(records, steps=60, width=width)
    if name in plots.FOR_ONE:
        return plots.FOR_ONE[name](records["bucketing"], width=width)
    return plots.FOR_COMPARISON[name](records, width=width)


@pytest.mark.parametrize("width", [5.5, 8.0])
@pytest.mark.parametrize("name", [*plots.FOR_COMPARISON, *plots.FOR_ONE, "slots"])
def test_nothing_is_clipped_or_overlaps(
    name: str, width: float, records: dict[str, Record]
) -> None:
    figure = draw(name, records, width)
    assert figure.get_figwidth() == width
    check_layout(figure)


def check_layout(figure: Figure) -> None:
    """Everything lies on the page, and no two texts, nor the legend and a panel, overlap."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    renderer = canvas.get_renderer()
    drawn = figure.get_tightbbox(renderer)
    width, height = figure.get_size_inches()
    assert min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) > -0.02, drawn
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in _texts(figure)]
    for i, (text, box) in enumerate(boxes):
        for other, second in boxes[:i]:
            shared = Bbox.intersection(box, second)
            assert shared is None or shared.width * shared.height < 9, f"{text!r} over {other!r}"
    for legend in figure.legends:
        for ax in figure.axes:
            assert Bbox.intersection(legend.get_window_extent(renderer), ax.bbox) is None


def _texts(figure: Figure) -> list[Text]:
    hidden = set()  # labels of ticks outside the panel are kept but not drawn
    for ax in figure.axes:
        for axis, view in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not min(view) <= tick.get_loc() <= max(view):
                    hidden |= {tick.label1, tick.label2}
    return [
        text
        for text in figure.findobj(lambda artist: isinstance(artist, Text))
        if isinstance(text, Text)
        and text not in hidden
        and text.get_visible()
        and text.get_text().strip()
    ]


def test_saved_twice_is_the_same_file(records: dict[str, Record], tmp_path: Path) -> None:
    for name in ("a", "b"):
        files = save(plots.padding(records), tmp_path / name)
        assert [f.name for f in files] == [f"{name}.png", f"{name}.svg"]
    for suffix in ("png", "svg"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


@pytest.mark.parametrize("name", ["latency", "padding", "running", "composition", "load"])
def test_runs_with_nothing_in_them(name: str, tmp_path: Path) -> None:
    r = toy(1).record
    empty: Any = {"bucketing": Record({}, r.requests[:0], r.steps[:0], r.events[:0])}
    check_layout(draw(name, empty, 8.0))
    refused = r.requests[r.requests["status"] == "refused"]
    check_layout(draw(name, {"bucketing": Record({}, refused, r.steps[:0], r.events[:0])}, 8.0))
