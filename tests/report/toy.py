"""Random runs simulated token by token, with the tables that a real run of them would give.

Nothing here plans well; it only obeys the tables' definitions, so that what reads the tables can be
held against what really happened to each token.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from serving.record import Record, make_table
from serving.tables import EVENTS, REQUESTS, STEPS


@dataclass
class Life:
    index: int
    arrival: float
    prompt: int
    output: int
    replica: int
    computed: int = 0
    ready: bool = False  # all known tokens computed: decodes
    admitted: bool = False
    scheduled: float = math.nan
    preemptions: int = 0
    status: str = "unfinished"
    finished: float = math.nan
    tokens: list[float] = field(default_factory=list)  # when each output token came

    @property
    def known(self) -> int:
        return self.prompt + len(self.tokens)


@dataclass
class Toy:
    """A run and the truth about it."""

    record: Record
    lives: list[Life]

    def gaps(self) -> list[float]:
        return [
            b - a
            for life in self.lives
            if life.status == "finished"
            for a, b in zip(life.tokens, life.tokens[1:], strict=False)
        ]


def toy(
    seed: int,
    requests: int = 12,
    replicas: int = 1,
    steps: int = 10_000,
    trouble: float = 0.15,
    padded: bool = False,
    config: dict[str, Any] | None = None,
) -> Toy:
    """`trouble` is the chance of a skip, of a preemption, and of a step without decodes."""
    rng = random.Random(seed)
    lives = [
        Life(i, rng.random() * 3, rng.randint(1, 40), rng.choice([0, 1, 2, 5, 30]), i % replicas)
        for i in range(requests)
    ]
    lives.sort(key=lambda life: life.arrival)
    for i, life in enumerate(lives):
        life.index = i
    step_rows: list[dict[str, Any]] = []
    event_rows: list[tuple[int, int, str, int, int]] = []
    for replica in range(replicas):
        mine = [life for life in lives if life.replica == replica]
        _run(rng, mine, replica, steps, trouble, padded, step_rows, event_rows)
    step_rows.sort(key=lambda row: row["end_s"])
    if requests > 3:
        refused = Life(requests, 3.0, 10**6, 5, -1, status="refused")
        lives.append(refused)
    return Toy(_record(lives, step_rows, event_rows, config), lives)


def _run(
    rng: random.Random,
    mine: list[Life],
    replica: int,
    steps: int,
    trouble: float,
    padded: bool,
    step_rows: list[dict[str, Any]],
    event_rows: list[tuple[int, int, str, int, int]],
) -> None:
    now = 0.0
    for step in range(steps):
        todo = [life for life in mine if life.status == "unfinished"]
        if not todo:
            return
        waiting = [life for life in todo if not life.admitted and life.arrival <= now]
        running = [life for life in todo if life.admitted]
        if not waiting and not running:
            now = min(life.arrival for life in todo)
            waiting = [life for life in todo if life.arrival <= now]
        row = dict.fromkeys(STEPS, 0)
        start, end = now, now + rng.choice([0.01, 0.02, 0.5]) + rng.random() * 1e-3
        no_decodes = rng.random() < trouble
        emits = []
        for life in running:
            if rng.random() < trouble / 3:
                event_rows.append((step, life.index, "preempt", life.computed, -1))
                life.computed, life.ready, life.admitted = 0, False, False
                life.preemptions += 1
                row["preempted"] += 1
            elif life.ready and not no_decodes:
                if rng.random() < trouble:
                    event_rows.append((step, life.index, "skip", 0, -1))
                    continue
                row["decode_tokens"] += 1
                row["decode_useful_pairs"] += life.computed + 1
                life.computed += 1
                emits.append(life)
        if emits and padded:  # rows held by nobody, computed all the same
            row["decode_slots"] += rng.randint(0, 3)
        row["decode_rows"] = row["decode_slots"] = row["decode_slots"] + row["decode_tokens"]
        for life in [*(r for r in running if r.admitted and not r.ready), *waiting[:3]]:
            if not life.admitted:
                life.admitted = True
                event_rows.append((step, life.index, "admit", 0, -1))
                if math.isnan(life.scheduled):
                    life.scheduled = start
            n = rng.randint(1, life.known - life.computed)
            row["prefill_useful_pairs"] += n * life.computed + n * (n + 1) // 2
            life.computed += n
            row["prefill_tokens"] += n
            row["prefill_rows"] += 1
            row["prefill_slots"] += n + (rng.randint(0, 5) if padded else 0)
            event_rows.append((step, life.index, "chunk", n, -1))
            if life.computed == life.known:
                life.ready = True
                event_rows.append((step, life.index, "first", 0, -1))
                emits.append(life)
        for life in emits:
            if life.output:
                life.tokens.append(end)
            if len(life.tokens) == life.output:
                life.status = "finished"
                life.finished = end
                event_rows.append((step, life.index, "finish", 0, -1))
        row |= {
            "step": step,
            "start_s": start,
            "end_s": end,
            "replica": replica,
            "waiting": sum(not life.admitted for life in todo if life.arrival <= now),
            "running": sum(life.admitted for life in todo),
            "kv_blocks_used": sum(-(-life.computed // 4) for life in todo if life.admitted),
            "sampled_rows": len(emits),
            "flops": float(row["prefill_tokens"] + row["decode_tokens"]),
            "bytes": float(row["decode_tokens"]),
        }
        for phase in ("prefill", "decode"):
            extra = row[f"{phase}_slots"] - row[f"{phase}_tokens"]
            row[f"{phase}_computed_pairs"] = row[f"{phase}_useful_pairs"] + 10 * extra
        step_rows.append(row)
        now = end


def _record(
    lives: list[Life],
    step_rows: list[dict[str, Any]],
    event_rows: list[tuple[int, int, str, int, int]],
    config: dict[str, Any] | None,
) -> Record:
    rows = []
    for life in lives:
        finished = life.status == "finished"
        first = life.tokens[0] if life.tokens else math.nan
        last = life.finished
        tpot = (last - first) / (life.output - 1) if finished and life.output > 1 else math.nan
        rows.append(
            {
                "request": life.index,
                "arrival_s": life.arrival,
                "prompt_tokens": life.prompt,
                "output_tokens": life.output,
                "scheduled_s": life.scheduled,
                "first_token_s": first,
                "finished_s": last,
                "ttft_s": first - life.arrival,
                "tpot_s": tpot,
                "e2e_s": last - life.arrival,
                "queue_s": life.scheduled - life.arrival,
                "grouping_wait_s": 0.25 * (life.scheduled - life.arrival),
                "preemptions": life.preemptions,
                "status": life.status,
                "reason": "over max_model_len" if life.status == "refused" else None,
                "replica": life.replica,
            }
        )
    settings = {
        "policy": "toy",
        "max_num_batched_tokens": 64,
        "kv_blocks": 1000,
        "peak_flops": 1e4,
        "peak_bytes_per_s": 1e3,
    }
    return Record(
        config=settings | (config or {}),
        requests=table(rows, REQUESTS),
        steps=table(step_rows, STEPS),
        events=table([dict(zip(EVENTS, e, strict=True)) for e in event_rows], EVENTS),
    )


def table(rows: list[dict[str, Any]], columns: dict[str, str]) -> pd.DataFrame:
    """Rows as a table with exactly the types of `columns`."""
    return make_table({name: [row[name] for row in rows] for name in columns}, columns)
