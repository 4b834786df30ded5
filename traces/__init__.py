"""Requests in: readers of every trace format the field has, built-in workloads, and checks.

- `load`: a file of any known format, or a built-in workload, as a `Trace`.
- `Trace`: columns of arrivals and lengths; `BlockHashes`: the hashes of the prompts' blocks.
- `TraceError`: what every reader raises.
- `WORKLOADS`: the built-in workloads.
"""

from traces.errors import TraceError
from traces.load import load
from traces.trace import BlockHashes, Trace
from traces.workloads import WORKLOADS

__all__ = ["WORKLOADS", "BlockHashes", "Trace", "TraceError", "load"]
