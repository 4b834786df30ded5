"""The tables of a run made plainly: of everything at once, in memory, by definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from serving.recorder import ADMIT, FINISH, FIRST, PREEMPT, Recorder
from serving.tables import EVENTS, KINDS, REQUESTS, STEPS
from traces import Trace

Tables = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]


def plain(trace: Trace, recorders: Sequence[Recorder]) -> Tables:
    """Request, step and event tables of what recorders kept, without a model."""
    steps = [pd.DataFrame(recorder.step_columns()) for recorder in recorders]
    events = [recorder.event_rows() for recorder in recorders]
    for replica, table in enumerate(steps):
        table["replica"], table["flops"], table["bytes"] = replica, np.nan, np.nan
    lives = [_life(trace, i) for i in range(len(trace))]
    for replica, (recorder, rows) in enumerate(zip(recorders, events, strict=True)):
        starts, ends = (steps[replica][name].tolist() for name in ("start_s", "end_s"))
        for step, index, kind, _, _ in rows.tolist():
            life = lives[index]
            if kind == ADMIT:
                life["replica"] = replica
                life["scheduled_s"] = life["scheduled_s"] or (starts[step],)
                life["grouping_wait_s"] = life["grouping_wait_s"] or (0.0,)
            elif kind == FIRST:
                life["first_token_s"] = life["first_token_s"] or (ends[step],)
            elif kind == FINISH:
                life["finished_s"], life["status"] = (ends[step],), "finished"
            elif kind == PREEMPT:
                life["preemptions"] += 1
        for index, seconds in recorder.waits.items():
            lives[index]["grouping_wait_s"] = (seconds,)
        for request, reason in recorder.refused:
            lives[request.index] |= {"status": "refused", "reason": reason}
    requests = pd.DataFrame([_told(life) for life in lives])
    every = pd.concat(steps).sort_values(["start_s", "replica"], kind="stable", ignore_index=True)
    lines = pd.DataFrame(np.concatenate(events), columns=list(EVENTS))
    lines["kind"] = pd.Categorical.from_codes(lines["kind"], list(KINDS))
    return requests[list(REQUESTS)].astype(REQUESTS), every[list(STEPS)].astype(STEPS), lines


def _life(trace: Trace, index: int) -> dict[str, Any]:
    """A request to which nothing has happened; times are tuples, empty where undefined."""
    times = ("scheduled_s", "first_token_s", "finished_s", "grouping_wait_s")
    return {
        "request": index,
        "arrival_s": float(trace.arrival_s[index]),
        "prompt_tokens": int(trace.prompt_tokens[index]),
        "output_tokens": int(trace.output_tokens[index]),
        **dict.fromkeys(times, ()),
        "preemptions": 0,
        "status": "unfinished",
        "reason": None,
        "replica": -1,
    }


def _told(life: dict[str, Any]) -> dict[str, Any]:
    """The same with the latencies that follow."""
    told = {k: (v[0] if v else np.nan) if isinstance(v, tuple) else v for k, v in life.items()}
    gaps = life["output_tokens"] - 1
    return told | {
        "ttft_s": told["first_token_s"] - told["arrival_s"],
        "e2e_s": told["finished_s"] - told["arrival_s"],
        "queue_s": told["scheduled_s"] - told["arrival_s"],
        "tpot_s": (told["finished_s"] - told["first_token_s"]) / gaps if gaps > 0 else np.nan,
    }
