"""A sweep on one and on two processes, on Dask and on Ray, with a worker killed in the middle.

    python benchmarks/sweep.py [--cells 1000] [--where local,dask,ray]

One and two local processes take turns over halves of the same sweep, because the machine's speed
drifts; on the clusters a worker is killed by its own process id while the sweep runs, and the table
is compared with the local one to the last bit.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import pandas as pd

from lengthwise.planning.parallel import Where, local
from lengthwise.planning.spec import SweepSpec
from lengthwise.planning.store import Store
from lengthwise.planning.sweep import Sweep, run_sweep


def spec_of(seeds: range) -> SweepSpec:
    """Ten cells a seed."""
    return SweepSpec.model_validate(
        {
            "trace": "chat",
            "base": {"limit": 400},
            "vary": {"max-num-seqs": [8, 16, 32, 64, 128]},
            "rates": [1, 2],
            "seeds": list(seeds),
        }
    )


def timed(spec: SweepSpec, where: Where) -> tuple[float, Sweep]:
    cells = list(spec.cells())
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        sweep = run_sweep(spec, Store(Path(folder)), where, cells=cells)
        return time.perf_counter() - began, sweep


def ratios(seeds: int, rounds: int) -> pd.DataFrame:
    """Seconds of one and of two processes in turn, the same cells in each round; returns rows."""
    local([(os.getpid, ())] * 4, 2)  # the workers have started
    tables, seconds = [], {1: 0.0, 2: 0.0}
    size = seeds // rounds
    for number in range(rounds):
        spec = spec_of(range(number * size, (number + 1) * size))
        for jobs in (1, 2) if number % 2 else (2, 1):
            taken, sweep = timed(spec, Where(jobs=jobs))
            seconds[jobs] += taken
        tables.append(sweep.table)
    cells = sum(len(table) for table in tables)
    print(f"{cells} cells: one process {seconds[1]:.1f} s, two {seconds[2]:.1f} s,", end=" ")
    print(f"ratio {seconds[1] / seconds[2]:.2f}")
    return pd.concat(tables, ignore_index=True)


def killed(pids: list[int], after: float) -> None:
    """Kill one of the processes after a while."""

    def kill() -> None:
        time.sleep(after)
        os.kill(pids[0], signal.SIGKILL)
        print(f"killed worker {pids[0]}")

    threading.Thread(target=kill, daemon=True).start()


def on_dask(spec: SweepSpec) -> pd.DataFrame:
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        killed([w.pid for w in cluster.workers.values()], 3.0)
        taken, sweep = timed(spec, Where(dask=cluster.scheduler_address))
    print(f"Dask: {taken:.1f} s, {sweep.computed} run, {sweep.failed} failed")
    return sweep.table


def on_ray(spec: SweepSpec) -> pd.DataFrame:
    import ray

    ray.init(address="local", num_cpus=2, log_to_driver=False)

    def kill() -> None:
        import psutil

        while True:
            time.sleep(2.0)
            below = psutil.Process().children(recursive=True)
            busy = [p.pid for p in below if p.name().startswith("ray::") and "IDLE" not in p.name()]
            if busy:
                os.kill(busy[-1], signal.SIGKILL)
                print(f"killed worker {busy[-1]}")
                return

    threading.Thread(target=kill, daemon=True).start()
    taken, sweep = timed(spec, Where(ray="local"))
    ray.shutdown()
    print(f"Ray: {taken:.1f} s, {sweep.computed} run, {sweep.failed} failed")
    return sweep.table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--where", default="local,dask,ray")
    args = parser.parse_args()
    seeds = args.cells // 10
    if "local" in args.where:
        ratios(seeds, rounds=min(10, seeds))
    few = spec_of(range(min(seeds, 20)))
    _, here = timed(few, Where(jobs=2))
    for name, engine in (("dask", on_dask), ("ray", on_ray)):
        if name in args.where:
            pd.testing.assert_frame_equal(engine(few), here.table, check_exact=True)
            print(f"{name}: the same table to the last bit")


if __name__ == "__main__":
    main()
