"""A large cluster: wall and CPU seconds, and the memory of the process as the requests grow.

python benchmarks/cluster.py [--requests 1000000] [--replicas 100] [--router least-requests]
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import lengthwise
from lengthwise.api import run
from lengthwise.cluster import prepare_run
from lengthwise.config import RunConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--router", default="least-requests")
    parser.add_argument("--load", type=float, default=20.0, help="requests/s of each replica")
    args = parser.parse_args()
    trace = lengthwise.load_trace("chat", limit=args.requests)
    own = (len(trace) - 1) / trace.span_s
    trace = trace.at_rate(args.load * args.replicas / own)
    config = RunConfig.of(replicas=args.replicas, router=args.router)
    ready = prepare_run(config, trace)
    began, busy = time.perf_counter(), time.process_time()
    record = run(ready, trace)
    simulated = time.perf_counter() - began, time.process_time() - busy
    simulated_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    summary = record.summary
    print(
        json.dumps(
            {
                "requests": len(trace),
                "replicas": args.replicas,
                "router": args.router,
                "finished": summary["completed"],
                "steps": summary["steps"],
                "p99_ttft_ms": round(summary["p99_ttft_ms"], 1),
                "p99_tpot_ms": round(summary["p99_tpot_ms"], 1),
                "wall_s": round(simulated[0], 1),
                "cpu_s": round(simulated[1], 1),
                "with_summary_cpu_s": round(time.process_time() - busy, 1),
                "peak_gb": round(simulated_kb / 1e6, 2),
                "peak_gb_with_summary": round(
                    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
