"""What binds: which limit goes first, and what the engine was short of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lengthwise.planning.probe import Outcome
from serving.record import Record


@dataclass(frozen=True)
class Why:
    """Shares of the time in which steps ran.

    Who still waits after a step was planned found no seat, no token budget or no KV blocks, and
    counts to the first of these that was short. Batches that drain let nobody in: there all of it
    is `waiting` alone.
    """

    compute: float | None
    """In steps that the arithmetic of the model bounds; None without a model."""
    bandwidth: float | None
    """In steps that the bytes of weights and KV bound."""
    waiting: float
    """While requests waited."""
    kv: float
    """While they waited for KV blocks."""
    seats: float
    """While they waited for a seat."""
    budget: float
    """While they waited for token budget."""
    budget_compute: float
    """The part of it in steps that arithmetic bounds."""

    def binds(self, limit: str) -> str:
        """What a limit is short of: `KV`, `seats`, `compute`, `bandwidth`, or `queue`.

        A limit on time per token is short of what steps spend their time on. One on the time until
        something (and the growth of the queue) is short of what requests wait for; where that is
        the token budget, of what those steps spend their time on. Without a model these are
        `step time` and `budget`.
        """
        if not limit.startswith(("tpot", "itl")):
            causes = {"KV": self.kv, "seats": self.seats, "budget": self.budget}
            cause = max(causes, key=lambda name: causes[name])
            if causes[cause] < self.waiting / 2 or not self.waiting:
                return "queue"
            if cause != "budget" or self.compute is None:
                return cause
            return "compute" if self.budget_compute > self.budget / 2 else "bandwidth"
        if self.compute is None or self.bandwidth is None:
            return "step time"
        return "compute" if self.compute > self.bandwidth else "bandwidth"

    def said(self) -> str:
        """The shares in a sentence."""
        parts = [f"requests wait during {_percent(self.waiting)} of the step time"]
        shares = {"KV blocks": self.kv, "seats": self.seats, "token budget": self.budget}
        for name, share in shares.items():
            if share > 0.005:
                parts.append(f"for {name} {_percent(share)}")
        if self.compute is not None and self.bandwidth is not None:
            parts.append(f"arithmetic bounds {_percent(self.compute)} of it")
            parts.append(f"bytes {_percent(self.bandwidth)}")
        return ", ".join(parts)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def why(record: Record) -> Why:
    """What the engine of a run was short of."""
    steps, config = record.steps, record.config
    seconds = (steps["end_s"] - steps["start_s"]).to_numpy()
    busy = float(seconds.sum()) or 1.0

    def share(chosen: object) -> float:
        return float(seconds[np.asarray(chosen, bool)].sum()) / busy

    waiting = steps["waiting"].to_numpy() > 0
    seats, budget, kv = _short(record, waiting)
    compute = bandwidth = None
    computing = np.zeros(len(steps), np.bool_)
    if config.get("peak_flops") and config.get("peak_bytes_per_s"):
        flops = steps["flops"].to_numpy() / config["peak_flops"]
        moved = steps["bytes"].to_numpy() / config["peak_bytes_per_s"]
        computing = flops > moved
        compute, bandwidth = share(computing), share(~computing)
    return Why(
        compute=compute,
        bandwidth=bandwidth,
        waiting=share(waiting),
        kv=share(kv),
        seats=share(seats),
        budget=share(budget),
        budget_compute=share(budget & computing),
    )


Steps = NDArray[np.bool_]


def _short(record: Record, waiting: Steps) -> tuple[Steps, Steps, Steps]:
    """Steps in which those who waited lacked seats, token budget, KV blocks; shape [steps] each."""
    steps, config = record.steps, record.config
    nobody = np.zeros(len(steps), np.bool_)
    if config["lifecycle"] == "drain":
        return nobody, nobody, nobody
    seats = waiting & (steps["running"].to_numpy() >= config["max_num_seqs"])
    slots = (steps["prefill_slots"] + steps["decode_slots"]).to_numpy()
    whole = config["lifecycle"] == "continuous"  # prompts that are not cut
    head = float(record.requests["prompt_tokens"].median()) if whole else 0.0
    budget = waiting & ~seats & (slots + head >= config["max_num_batched_tokens"])
    kv = nobody if config["kv_blocks"] is None else waiting & ~seats & ~budget
    return seats, budget, kv


def first_to_fail(sustained: Outcome, beyond: Outcome | None) -> str:
    """The limit that goes first as the rate grows, or `queue` where only its growth stops it."""
    outcome = beyond or sustained
    name, margin = outcome.tightest
    return "queue" if outcome.saturated and margin <= 1 else name
