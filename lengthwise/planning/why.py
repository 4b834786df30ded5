"""What binds: which limit goes first, and what the engine was short of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lengthwise.planning.probe import Outcome
from serving.record import Record

FULL = 0.95
"""Share of the KV blocks from which the cache counts as full."""


@dataclass(frozen=True)
class Why:
    """Shares of the time in which steps ran."""

    compute: float | None
    """In steps that the arithmetic of the model bounds; None without a model."""
    bandwidth: float | None
    """In steps that the bytes of weights and KV bound."""
    waiting: float
    """While requests waited."""
    kv: float
    """While they waited and the KV cache was full."""
    seats: float
    """While they waited and every seat was taken."""
    budget: float
    """While they waited and the step used its whole token budget."""

    def binds(self, limit: str) -> str:
        """What a limit is short of: `KV`, `seats`, `compute`, `bandwidth`, or `queue`.

        A limit on time per token is short of what steps spend their time on. One on the time until
        something (and the growth of the queue) is short of what requests wait for; where that is
        the token budget, again of what steps spend their time on.
        """
        if not limit.startswith(("tpot", "itl")):
            causes = {"KV": self.kv, "seats": self.seats, "budget": self.budget}
            cause = max(causes, key=lambda name: causes[name])
            if causes[cause] < self.waiting / 2 or not self.waiting:
                return "queue"
            if cause != "budget":
                return cause
        if self.compute is None or self.bandwidth is None:
            return "queue" if not limit.startswith(("tpot", "itl")) else "step time"
        return "compute" if self.compute > self.bandwidth else "bandwidth"

    def said(self) -> str:
        """The shares in a sentence."""
        parts = [f"requests wait during {_percent(self.waiting)} of the step time"]
        for name, share in (("KV full", self.kv), ("seats taken", self.seats)):
            if share > 0.005:
                parts.append(f"{name} {_percent(share)}")
        if self.budget > 0.005:
            parts.append(f"budget used up {_percent(self.budget)}")
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
    compute = bandwidth = None
    if config.get("peak_flops") and config.get("peak_bytes_per_s"):
        flops = steps["flops"].to_numpy() / config["peak_flops"]
        moved = steps["bytes"].to_numpy() / config["peak_bytes_per_s"]
        compute, bandwidth = share(flops > moved), share(flops <= moved)
    slots = (steps["prefill_slots"] + steps["decode_slots"]).to_numpy()
    blocks, budget = config.get("kv_blocks"), config.get("max_num_batched_tokens")
    full = steps["kv_blocks_used"].to_numpy() >= FULL * blocks if blocks else np.zeros(len(steps))
    return Why(
        compute,
        bandwidth,
        share(waiting),
        share(waiting & (full > 0)),
        share(waiting & (steps["running"].to_numpy() >= config["max_num_seqs"])),
        share(waiting & (slots >= budget)) if budget else 0.0,
    )


def first_to_fail(sustained: Outcome, beyond: Outcome | None) -> str:
    """The limit that goes first as the rate grows, or `queue` where only its growth stops it."""
    outcome = beyond or sustained
    name, margin = outcome.tightest
    return "queue" if outcome.saturated and margin <= 1 else name
