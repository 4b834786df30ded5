"""Time, measured: policies on a real model and a real clock."""

import os

# An idle thread of a CPU's matrix product spins for milliseconds before it sleeps. Where other
# programs want those cores, that is ten times the time of a step; so it sleeps after about 15 us,
# as it does anyway with more threads than cores. Read when PyTorch is imported, which comes later.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
