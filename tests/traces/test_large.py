"""Large files: memory is the trace's own columns and little more. A fifth of 10 million rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from traces import Trace
from traces.write import write

ROWS = 2_000_000
READ = """
import resource, sys, pyarrow.csv, pyarrow.parquet
import traces
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trace = traces.load(sys.argv[1])
print(len(trace), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("name", ["big.parquet", "big.csv", "big.csv.zst"])
def test_reading_takes_little_more_than_the_columns(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    arrival = np.concatenate([[0], np.cumsum(rng.exponential(0.1, ROWS - 1))])
    trace = Trace(arrival, rng.integers(1, 4000, ROWS), rng.integers(0, 500, ROWS))
    write(trace, tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=True,
    )
    rows, kib = map(int, done.stdout.split())
    assert rows == ROWS
    # Columns are 24 bytes a row (46 MiB); twice that while parts are joined, and blocks of 8 MiB.
    assert kib < 260 * 1024
