"""The highest rate of a trace that each policy sustains: bisection on its rate.

    python benchmarks/sustain.py TRACE [--policies static,continuous] [--json]

A rate is sustained while the queue does not grow: a straight line through the number of waiting
requests, over the time in which requests arrive, rises by less than 1% of all requests.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import pandas as pd

from lengthwise.api import run
from lengthwise.prepare import prepare
from lengthwise.unused import own_options
from policies.compose import NAMED
from serving.record import Record
from traces import Trace, load

TOLERANCE = 0.03


def growth(record: Record, span: float) -> float:
    """How much longer the queue is at the end of the arrivals, as a share of all requests."""
    requests = record.requests
    taken = requests["scheduled_s"].to_numpy()
    arrived = requests["arrival_s"].to_numpy()
    at = np.linspace(0.0, span, 2000)
    waiting = np.searchsorted(arrived, at, "right") - np.searchsorted(np.sort(taken), at, "right")
    slope = np.polyfit(at, waiting, 1)[0]
    return float(slope * span / len(requests))


def sustained(trace: Trace, policy: str, scale: float, options: dict[str, object]) -> bool:
    """Whether the policy keeps up with the trace at `scale` times its rate."""
    faster = trace.at_rate(scale)
    record = run(prepare(own_options(policy, options), faster), faster)
    return growth(record, faster.span_s) < 0.01


def highest(trace: Trace, policy: str, options: dict[str, object]) -> float:
    """The highest sustained rate-scale, to within the tolerance."""
    low, high = 0.0625, 0.125
    while sustained(trace, policy, high, options):
        low, high = high, 2 * high
        if high > 64:
            return low
    while high / low > 1 + TOLERANCE:
        middle = (low * high) ** 0.5
        if sustained(trace, policy, middle, options):
            low = middle
        else:
            high = middle
    return low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("--policies", default=",".join(NAMED))
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--hardware", default="h100")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    trace = load(args.trace)
    rate = len(trace) / trace.span_s
    rows = []
    for policy in args.policies.split(","):
        scale = highest(trace, policy, {"model": args.model, "hardware": args.hardware})
        rows.append({"policy": policy, "rate_scale": scale, "requests_per_s": scale * rate})
        if not args.json:
            print(f"{policy:>16}  rate-scale {scale:6.2f}  {scale * rate:6.2f} requests/s")
    if args.json:
        print(json.dumps(rows))
    else:
        best = max(row["requests_per_s"] for row in rows)
        table = pd.DataFrame(rows).assign(share=[row["requests_per_s"] / best for row in rows])
        print(table.to_string(index=False, float_format="%.3g"))


if __name__ == "__main__":
    main()
