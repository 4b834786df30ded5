"""All settings of a plan as one table, which of them no other beats, and the picture of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lengthwise.planning.plan import Answer, Asked, Plan, dollars, per_gpu
from lengthwise.planning.probe import Outcome
from lengthwise.planning.screen import Screened
from lengthwise.planning.settings import Candidate
from lengthwise.style import GREY, looks, new_figure, styled

BISECTED, SCREENED, REFUSED, WHOLE = "bisected", "screened", "cannot run", "whole trace"
"""What was done for a row: its highest rate found, run once at a rate, neither, or found on the
whole trace and not on the screen's requests."""


def table_of(plan: Plan) -> pd.DataFrame:
    """A row a setting, and one more for each machine's best on the whole trace.

    Columns: the settings, `found` (one of the four above), `rate` (requests/s: the highest
    sustained one, or that of the screen), `sustained`, `goodput_per_gpu`, `output_tokens_per_gpu`
    (both /s), `dollars_per_m_output`, p99s, `limit` (the first to go), `pareto`, `reason`.
    """
    rows = [
        _screened_row(plan.asked, screened, candidate)
        for screened in plan.screens
        for candidate in screened.every
    ]
    rows += [
        _row(plan.asked, answer.candidate, WHOLE, answer.at, _limit(answer))
        for answer in plan.answers
    ]
    table = pd.DataFrame(rows)
    for found in (BISECTED, WHOLE):
        some = (table["found"] == found) & table["sustained"].astype(bool)
        table.loc[some, "pareto"] = pareto(table[some])
    return table


def _screened_row(asked: Asked, screened: Screened, candidate: Candidate) -> dict[str, Any]:
    number = candidate.number
    found = screened.found.get(number)
    if found is not None:
        best, beyond = found.low, found.high
        outcome = (best or found.runs[-1])[1]
        limit = (outcome if beyond is None else beyond[1]).tightest[0]
        return _row(asked, candidate, BISECTED, outcome, limit)
    if number in screened.tried:
        outcome = screened.tried[number][1]
        return _row(asked, candidate, SCREENED, outcome, outcome.tightest[0])
    reason = screened.refused.get(number, "no setting of this machine keeps the SLO")
    return {**candidate.setting, "found": REFUSED, "sustained": False, "reason": reason}


def _limit(answer: Answer) -> str:
    high = answer.found.high
    return (answer.at if high is None else high[1]).tightest[0]


def _row(
    asked: Asked, candidate: Candidate, found: str, outcome: Outcome, limit: str
) -> dict[str, Any]:
    figures, gpus = outcome.figures, candidate.gpus
    price = None if asked.prices is None else asked.prices[candidate.hardware]
    return {
        **candidate.setting,
        "found": found,
        "rate": outcome.rate,
        "sustained": outcome.sustained,
        "goodput_per_gpu": per_gpu(figures, gpus) if figures["completed"] else 0.0,
        "output_tokens_per_gpu": (figures["output_throughput"] or 0.0) / gpus,
        "dollars_per_m_output": None if price is None else dollars(figures, gpus, price),
        "p99_ttft_ms": figures["p99_ttft_ms"],
        "p99_tpot_ms": figures["p99_tpot_ms"],
        "limit": limit,
        "pareto": False,
        "reason": outcome.said,
        "machine": " ".join(str(part) for part in candidate.machine[:3] if part is not None)
        or candidate.hardware,
    }


def pareto(rows: pd.DataFrame) -> list[bool]:
    """Whether no other row has both more output tokens a GPU and a lower p99 of TPOT."""
    points = list(zip(rows["output_tokens_per_gpu"], rows["p99_tpot_ms"].fillna(0.0), strict=True))
    return [not any((x >= a and y <= b) and (x > a or y < b) for x, y in points) for a, b in points]


def picture(plan: Plan, table: pd.DataFrame, width: float = 8.0) -> Figure:
    """Output tokens a second and GPU against the p99 of TPOT, the settings that nothing beats as a
    line."""
    machines = list(dict.fromkeys(table["machine"].dropna()))
    look = looks(machines)
    with styled():
        figure = new_figure(width, 0.52 * width + 0.3)
        ax = figure.subplots()
        for name in machines:
            own = table[(table["machine"] == name) & table["p99_tpot_ms"].notna()]
            once = own[own["found"] == SCREENED]
            colour = look[name].colour
            for kept, marker in ((True, "."), (False, "x")):
                some = once[once["sustained"].astype(bool) == kept]
                x, y = some["p99_tpot_ms"], some["output_tokens_per_gpu"]
                ax.plot(x, y, marker, color=colour, alpha=0.45, ms=4, zorder=1)
            some = own[(own["found"] == BISECTED) & own["sustained"].astype(bool)]
            _points(ax, some, colour, marker_of(machines, name))
        best = plan.best.at.figures
        gpus = plan.best.candidate.gpus
        ax.plot(
            best["p99_tpot_ms"] or 0.0,
            best["output_throughput"] / gpus,
            "*",
            color="black",
            markersize=13,
            zorder=4,
        )
        for name, limit in plan.best.at.limits.items():
            if name == "tpot_p99_ms":
                ax.axvline(limit["limit_ms"], color=GREY, lw=1.2, ls=(0, (5, 2)))
                at = limit["limit_ms"], 0.02
                ax.annotate(" limit", at, xycoords=("data", "axes fraction"), color=GREY)
        ax.set_xlim(0)
        ax.set_ylim(0)
        ax.set_xlabel("p99 of the time per output token (ms)")
        ax.set_ylabel("output tokens/s per GPU")
        ax.set_title("At the highest rate that keeps the SLO")
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        once = set(table.loc[table["found"] == SCREENED, "sustained"].astype(bool))
        _legend(figure, machines, look, once)
    return figure


def marker_of(machines: Sequence[str], name: str) -> str:
    """A machine's points, which colour alone should not tell apart."""
    return "os^Dvp"[machines.index(name) % 6]


def _points(ax: Any, rows: pd.DataFrame, colour: str, marker: str) -> None:
    x, y = rows["p99_tpot_ms"], rows["output_tokens_per_gpu"]
    ax.plot(x, y, marker, color=colour, ms=5, zorder=2)
    front = rows[pareto(rows)].sort_values("p99_tpot_ms")
    ax.plot(front["p99_tpot_ms"], front["output_tokens_per_gpu"], color=colour, zorder=3)


def _legend(figure: Figure, machines: Sequence[str], look: Any, once: set[bool]) -> None:
    """What the marks mean; `once`: whether settings that were run once kept the SLO."""
    handles = [
        Line2D([], [], color=look[n].colour, marker=marker_of(machines, n), ms=5, label=n)
        for n in machines
    ]
    marks = {True: (".", "run once"), False: ("x", "run once, SLO not kept")}
    handles += [
        Line2D([], [], color=GREY, marker=marker, ms=5, ls="", label=label)
        for kept, (marker, label) in marks.items()
        if kept in once
    ]
    best = Line2D([], [], color="black", marker="*", ls="", ms=11, label="best, whole trace")
    handles.append(best)
    figure.legend(handles=handles, loc="outside upper center", ncols=5)
