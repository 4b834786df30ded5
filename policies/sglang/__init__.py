"""SGLang's scheduler: prefill first, one chunked prompt at a time, retraction by length.

- `Sglang`: the planner; `SglangLimits`: its settings, under SGLang's names.
- `PrefillAdder`: the sums by which a request joins a prefill batch.
- `NewTokenRatio`: how much of the outputs still to come is reserved.
- `retract`: who loses memory when decodes run out of it.
- `Memory`: the KV pool and the radix cache in it.
"""

from policies.sglang.admission import PrefillAdder, Verdict
from policies.sglang.batch import RunningBatch
from policies.sglang.limits import SglangLimits
from policies.sglang.memory import Memory
from policies.sglang.planner import Sglang
from policies.sglang.ratio import NewTokenRatio
from policies.sglang.retraction import retract

__all__ = [
    "Memory",
    "NewTokenRatio",
    "PrefillAdder",
    "RunningBatch",
    "Sglang",
    "SglangLimits",
    "Verdict",
    "retract",
]
