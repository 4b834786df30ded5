"""A plan in words: for the terminal, and as the document that is saved."""

from __future__ import annotations

import shlex
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table

from lengthwise.config import RunConfig
from lengthwise.console import number
from lengthwise.planning.front import BISECTED, WHOLE
from lengthwise.planning.plan import Answer, Plan, dollars, per_gpu
from lengthwise.planning.settings import neighbours

COLUMNS = {
    "rate": "requests\n/s",
    "goodput_per_gpu": "goodput\n/s a GPU",
    "output_tokens_per_gpu": "output tok/s\na GPU",
    "dollars_per_m_output": "$ a million\noutput tok",
    "p99_ttft_ms": "TTFT\np99 ms",
    "p99_tpot_ms": "TPOT\np99 ms",
}


def answer_of(plan: Plan) -> dict[str, Any]:
    """The answers as one document: what `--json` prints and `summary.json` holds."""
    best = plan.best
    price = None
    if plan.asked.prices is not None:
        hour = plan.asked.prices[best.candidate.hardware]
        price = dollars(best.at.figures, best.candidate.gpus, hour)
    high = best.found.high
    return {
        "settings": dict(best.candidate.setting),
        "rate": best.at.rate,
        "rate_scale": best.scale,
        "not_sustained_rate": None if high is None else high[1].rate,
        "tolerance": plan.asked.tolerance,
        "goodput_per_gpu": per_gpu(best.at.figures, best.candidate.gpus),
        "dollars_per_m_output": price,
        "figures": dict(best.at.figures),
        "slo": {name: dict(part) for name, part in best.at.limits.items()},
        "replicas": best.fewest,
        "gpus": None if best.fewest is None else best.fewest * best.candidate.gpus,
        "range": None if plan.range is None else _range(plan),
        "first_limit": plan.limit,
        "binds": plan.why.binds(plan.limit),
        "why": plan.why.said(),
        "machines": [_machine(plan, answer) for answer in plan.answers],
        "neighbours": _neighbours(plan),
        "screened": sum(len(screened.every) for screened in plan.screens),
        "command": command(best),
    }


def _range(plan: Plan) -> dict[str, Any]:
    assert plan.range is not None
    named = {}
    for end in ("slower", "faster"):
        rate, replicas = getattr(plan.range, end)
        named[end] = {"rate": rate, "replicas": replicas}
    return {"from": plan.range.said, **named}


def _machine(plan: Plan, answer: Answer) -> dict[str, Any]:
    return {
        "settings": dict(answer.candidate.setting),
        "rate": answer.at.rate,
        "goodput_per_gpu": per_gpu(answer.at.figures, answer.candidate.gpus),
        "replicas": answer.fewest,
        "gpus": None if answer.fewest is None else answer.fewest * answer.candidate.gpus,
    }


def _neighbours(plan: Plan) -> list[dict[str, Any]]:
    """The settings one step away, by what they sustain on the screen's requests."""
    best = plan.best.candidate
    screened = next(s for s in plan.screens if best in s.every)
    own = screened.scale(best)
    near = []
    for other in neighbours(best, screened.every):
        found = screened.found.get(other.number)
        change = {n: v for n, v in other.setting.items() if v != best.setting[n]}
        entry: dict[str, Any] = {"change": change, "of_best": None, "reason": None}
        if found is None:
            entry["reason"] = screened.refused.get(other.number)
        else:
            beyond = found.high
            entry["of_best"] = screened.scale(other) / own if found.low else 0.0
            entry["reason"] = None if beyond is None else beyond[1].said
        near.append(entry)
    return near


def command(answer: Answer) -> str:
    """The `replay` that gives the recommendation's figures."""
    config: RunConfig = answer.candidate.config.model_copy(update={"rate_scale": answer.scale})
    words = ["lengthwise", "replay", str(config.trace)]
    for name, value in config.model_dump(exclude_defaults=True, exclude={"trace"}).items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif name == "slo":
            words += [flag, ",".join(f"{k}={v!r}" for k, v in value.items())]
        elif name == "goodput":
            words += [flag, *(f"{k}:{v!r}" for k, v in value.items())]
        elif isinstance(value, tuple):
            words += [flag, ",".join(str(v) for v in value)]
        else:
            words += [flag, repr(value) if isinstance(value, float) else str(value)]
    return shlex.join(words)


def lines_of(plan: Plan) -> list[str]:
    """The answers in sentences."""
    best, answer = plan.best, answer_of(plan)
    own = plan.asked.trace.at_rate(plan.asked.own_scale)
    own_rate = (len(own) - 1) / own.span_s
    rate = f"{best.at.rate:.3g} requests/s"
    if best.found.high is None:
        rate += ": the SLO holds at every rate that this trace can show"
    else:
        rate += f" ({best.found.high[1].rate:.3g} is too much: {best.found.high[1].said})"
    said = [f"best settings   {best.candidate.label}", f"one replica     {rate}"]
    many = "no number of them keeps the SLO" if best.fewest is None else _replicas(best.fewest)
    said.append(f"replicas        {many} for the trace at {own_rate:.3g} requests/s")
    if plan.range is not None:
        slower, faster = plan.range.slower, plan.range.faster
        said.append(
            f"range           {_end(slower)} if steps are slower, {_end(faster)} if faster "
            f"({plan.range.said})"
        )
    if answer["dollars_per_m_output"] is not None:
        said.append(
            f"cost            ${answer['dollars_per_m_output']:.3g} a million output tokens"
        )
    binds = f"{answer['binds']}, by {plan.limit}: {answer['why']}"
    held = "nothing at these rates; the nearest is " if best.found.high is None else ""
    said.append(f"binds           {held}{binds}")
    for other in plan.answers[1:]:
        need = "–" if other.fewest is None else _replicas(other.fewest)
        said.append(f"instead         {other.candidate.label}: {other.at.rate:.3g}/s, {need}")
    for near in answer["neighbours"]:
        change = ", ".join(f"{name}={value}" for name, value in near["change"].items())
        far = (
            "cannot run" if near["of_best"] is None else f"{100 * near['of_best']:.0f}% of its rate"
        )
        why = "" if near["reason"] is None else f" ({near['reason']})"
        said.append(f"neighbour       {change}: {far}{why}")
    said.append(f"again           {answer['command']}")
    return said


def _replicas(count: int) -> str:
    return f"{count:,} replica" + ("s" if count != 1 else "")


def _end(end: tuple[float | None, int | None]) -> str:
    rate, count = end
    if rate is None:
        return "nothing"
    return f"{rate:.3g}/s" + ("" if count is None else f" and {_replicas(count)}")


def pareto_table(plan: Plan, rows: pd.DataFrame) -> Table:
    """The settings that no other beats in throughput a GPU and p99 of TPOT, best first."""
    names = list(plan.best.candidate.setting)
    front = rows[(rows["found"] == BISECTED) & rows["pareto"].astype(bool)]
    front = front.sort_values("output_tokens_per_gpu", ascending=False)
    whole = rows[rows["found"] == WHOLE]
    shown = {n: h for n, h in COLUMNS.items() if rows[n].notna().any()}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    for name in ("found", *names):
        table.add_column(name, vertical="bottom")
    for heading in shown.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for row in pd.concat([whole, front]).to_dict("records"):
        kind = "whole trace" if row["found"] == WHOLE else "screen"
        figures = [number(None if row[n] != row[n] else row[n]) for n in shown]
        table.add_row(kind, *(str(row[name]) for name in names), *figures)
    return table
