"""A report on runs as one HTML file that needs nothing else: figures, plots, settings, requests."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lengthwise import plots
from lengthwise.config import flatten
from lengthwise.console import NONE, number
from lengthwise.report_figures import figures_table
from lengthwise.report_page import page
from lengthwise.slotmap import slot_maps
from lengthwise.spent import PHASES, spent
from lengthwise.style import styled
from serving.record import Record, RecordError

WORST = 10
"""So many requests with the longest E2E, and with the longest TTFT, are listed for each run."""

SLOT_ROWS, SLOT_STEPS = 64, 120
"""Slot maps are drawn of runs with at most so many seats in use, over so many steps."""


def load_runs(folders: Iterable[Path]) -> dict[str, Record]:
    """The records in `folders`, by name; a folder of `compare` holds several.

    Raises:
        RecordError: a folder that is neither a record nor holds one.
    """
    found: dict[str, Record] = {}
    for folder in folders:
        if (folder / "config.json").is_file():
            inside = [folder]
        else:
            inside = sorted(p.parent for p in folder.glob("*/config.json"))
            inside = _in_order(folder, inside)
        if not inside:
            raise RecordError(f"{folder}: neither a record nor a folder of records")
        for one in inside:
            record = Record.load(one)
            name = str(record.config.get("policy") or one.name)
            found[_free(name, one.name, found)] = record
    return found


def _in_order(folder: Path, inside: list[Path]) -> list[Path]:
    """The records of a comparison in its own order, which its summary has."""
    try:
        names = list(json.loads((folder / "summary.json").read_text())["policies"])
    except (OSError, ValueError, KeyError, TypeError):
        return inside
    return sorted(inside, key=lambda p: names.index(p.name) if p.name in names else len(names))


def _free(name: str, folder: str, taken: Mapping[str, Any]) -> str:
    """A name that no other run has: the policy's, else with its folder, else numbered."""
    if name not in taken:
        return name
    name = f"{name} ({folder})"
    number, free = 2, name
    while free in taken:
        free, number = f"{name} {number}", number + 1
    return free


def report(records: Mapping[str, Record]) -> str:
    """The report as one HTML document.

    Args:
        records: runs by name, in the order in which they are shown.
    """
    title = "Report: " + ", ".join(records)
    parts = [f"<h1>{escape(title)}</h1>", "<h2>Figures</h2>"]
    if len(records) > 1:
        parts.append("<p>★ marks the best of a row.</p>")
    parts += [figures_table(records), "<h2>Side by side</h2>"]
    for name, draw in plots.FOR_COMPARISON.items():
        parts.append(_picture(draw(records), _CAPTIONS[name]))
    parts.append("<h2>Run by run</h2>")
    parts += [_one_run(name, record) for name, record in records.items()]
    parts += ["<h2>Worst requests</h2>", _worst(records)]
    parts += ["<h2>Settings and versions</h2>", _settings(records)]
    return page(escape(title), "\n".join(parts))


_CAPTIONS = {
    "latency": "Share of requests (for ITL, of gaps between tokens) that took at most so long.",
    "padding": "Useful and wasted token slots, and query-key pairs of attention.",
    "running": "Requests in a seat over time.",
    "composition": "What steps computed over time.",
    "load": "The queue, the running requests and the KV cache over time.",
    "slots": "Which row of the batch did what in the first steps.",
}


def _picture(figure: Figure, caption: str) -> str:
    """A figure as SVG inside the page; as an image, so that nothing in it can run."""
    file = io.BytesIO()
    with styled():
        figure.savefig(file, format="svg", metadata={"Date": None})
    data = base64.b64encode(file.getvalue()).decode("ascii")
    text = escape(caption)
    return (
        f'<figure><img alt="{text}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{text}</figcaption></figure>"
    )


def _one_run(name: str, record: Record) -> str:
    """What a run has to say of itself, folded up: notes, refusals, plots over time."""
    parts = [f"<li>{escape(note)}</li>" for note in record.notes]
    reasons = record.requests.loc[record.requests["status"] == "refused", "reason"]
    parts += [
        f"<li>refused: {count:,} × {escape(str(reason))}</li>"
        for reason, count in reasons.value_counts().head(10).items()
    ]
    body = f"<ul>{''.join(parts)}</ul>" if parts else ""
    for plot, draw in plots.FOR_ONE.items():
        body += _picture(draw(record), _CAPTIONS[plot])
    if len(record.steps) and record.steps["running"].max() <= SLOT_ROWS:
        body += _picture(slot_maps({name: record}, steps=SLOT_STEPS), _CAPTIONS["slots"])
    return f"<details><summary>{escape(name)}</summary>{body}</details>"


# Requests

_REQUEST_COLUMNS = {
    "run": "Run",
    "request": "Request",
    "prompt_tokens": "Prompt",
    "output_tokens": "Output",
    "arrival_s": "Arrival (s)",
    "ttft_s": "TTFT (s)",
    "tpot_s": "TPOT (s)",
    "e2e_s": "E2E (s)",
    "bar": "Where the time went",
    **{f"{phase}_s": f"{phase.capitalize()} (s)" for phase in PHASES},
    "preemptions": "Preempted (times)",
}


def _worst(records: Mapping[str, Record]) -> str:
    """The requests that took longest, and where each spent its time; sorted by a click."""
    rows = [row for name, record in records.items() for row in _worst_rows(name, record)]
    rows.sort(key=lambda row: -row["e2e_s"])
    heads = "".join(_head(column, title) for column, title in _REQUEST_COLUMNS.items())
    body = "".join(_request_row(row) for row in rows)
    keys = "".join(f'<span class="{phase}"></span>{phase}' for phase in PHASES)
    return (
        f"<p>Of each run the {WORST} requests with the longest E2E and the {WORST} with the "
        f'longest TTFT. A heading sorts. Where the time went: <span class="key">{keys}</span></p>'
        '<div class="scroll" tabindex="0"><table id="worst" class="sortable">'
        f"<thead><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _worst_rows(name: str, record: Record) -> list[dict[Any, Any]]:
    finished = record.requests[record.requests["status"] == "finished"]
    worst = pd.concat([finished.nlargest(WORST, "e2e_s"), finished.nlargest(WORST, "ttft_s")])
    worst = worst.drop_duplicates("request")
    merged = worst.merge(spent(record, worst["request"].tolist()), on="request")
    return merged.assign(run=name).to_dict("records")


def _head(column: str, title: str) -> str:
    if column == "bar":
        return f'<th scope="col">{escape(title)}</th>'
    kind = "text" if column == "run" else "number"
    sort = ' aria-sort="descending"' if column == "e2e_s" else ""
    button = f'<button type="button">{escape(title)}</button>'
    return f'<th scope="col" data-kind="{kind}"{sort}>{button}</th>'


def _request_row(row: Mapping[str, Any]) -> str:
    return f"<tr>{''.join(_cell(row, column) for column in _REQUEST_COLUMNS)}</tr>"


def _cell(row: Mapping[str, Any], column: str) -> str:
    if column == "bar":
        return f"<td>{_bar(row)}</td>"
    value = row[column]
    if column == "run":
        return f'<td data-value="{escape(value)}">{escape(value)}</td>'
    if isinstance(value, float) and np.isnan(value):
        return f'<td data-value="">{NONE}</td>'
    return f'<td data-value="{value}">{number(value)}</td>'


def _bar(row: Mapping[str, Any]) -> str:
    """A bar of the shares of a request's life, said in words too."""
    parts = {phase: row[f"{phase}_s"] for phase in PHASES}
    whole = sum(parts.values()) or 1.0
    said = ", ".join(f"{phase} {100 * part / whole:.0f}%" for phase, part in parts.items())
    bar = "".join(
        f'<span class="{phase}" style="width:{100 * part / whole:.2f}%"></span>'
        for phase, part in parts.items()
    )
    return f'<div class="bar" role="img" aria-label="{said}" title="{said}">{bar}</div>'


# Settings


def _settings(records: Mapping[str, Record]) -> str:
    """The configuration of every run: what all have in common once, what differs side by side."""
    flat = {name: dict(flatten(record.config)) for name, record in records.items()}
    keys = list(dict.fromkeys(key for settings in flat.values() for key in settings))
    same = [k for k in keys if len({settings.get(k, NONE) for settings in flat.values()}) == 1]
    differ = [key for key in keys if key not in same]
    parts = []
    if differ:
        heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in flat)
        parts.append(_setting_table(heads, differ, list(flat.values())))
    common = _setting_table('<th scope="col">all runs</th>', same, list(flat.values())[:1])
    title = "The same in all runs" if len(flat) > 1 else "All settings"
    parts.append(f"<details><summary>{title}</summary>{common}</details>")
    return "".join(parts)


def _setting_table(heads: str, keys: list[str], runs: list[dict[str, str]]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th>'
        + "".join(f'<td class="text">{escape(run.get(key, NONE))}</td>' for run in runs)
        + "</tr>"
        for key in keys
    )
    return (
        '<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">Setting</th>'
        f"{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
