"""The simulator's speed and memory on a fixed set of runs, beside bare SimPy timeouts.

    python benchmarks/bench.py [--traces DIR] [--case NAME ...] [--compare REV] [--out FILE]

Each case runs in a process of its own, so that peak memory is its own. The unit is the CPU time of
one bare SimPy timeout, measured before and after every run of ours, since the machine's speed
drifts: what can be compared between machines are the ratios. Figures are medians. The cases are in
`cases.py`; those on published traces need the folder that holds them. The package is measured as it
is installed, compiled where a C compiler was at hand; to compare, both revisions are installed
aside.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
from cases import CASES

HERE = Path(__file__).parent
CODE = HERE.parent

SIMULATE = "CPyDef_engine___simulate"
"""The compiled `sim.engine.simulate`: only what runs within it is counted in instructions."""

COLUMNS = {
    "case": "case",
    "steps_per_s": "steps/s",
    "requests_per_s": "requests/s",
    "events_per_s": "events/s",
    "peak_mb": "peak MB",
    "timeouts_per_step": "timeouts/step",
    "timeouts_per_request": "timeouts/request",
    "share_6_12": "of 6/step + 12/request",
    "unit_us": "timeout, µs",
}


def run_case(name: str, traces: str, package: Path | None = None) -> dict[str, object]:
    """One case in a process of its own, on what is installed in the folder `package`, or here."""
    environment = os.environ if package is None else {**os.environ, "PYTHONPATH": str(package)}
    command = [sys.executable, str(HERE / "cases.py"), name, "--traces", traces]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"case": name, "failed": last}
    return json.loads(done.stdout)


def instructions(name: str, requests: int) -> int | None:
    """Machine instructions of the simulation of a case's first requests, by callgrind.

    None without valgrind, and where the loop is not compiled: it then has no name to count by.
    """
    with tempfile.TemporaryDirectory() as folder:
        script = [str(HERE / "cases.py"), name, "--count", str(requests)]
        options = [f"--callgrind-out-file={folder}/out", f"--toggle-collect={SIMULATE}"]
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", *options, sys.executable, *script],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
    found = [line for line in done.stderr.splitlines() if "Collected" in line]
    if done.returncode or not found:
        return None
    return int(found[-1].split(":")[1]) or None


def commit() -> str:
    """The revision that was measured, with a + where files differ from it."""
    told = ["git", "-C", str(CODE), "describe", "--always", "--dirty=+"]
    done = subprocess.run(told, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def install(source: Path, package: Path) -> Path:
    """Install the package from its sources into a folder of its own."""
    shutil.rmtree(source / "build", ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*pip, str(package), str(source)], check=True)
    return package


def compare(names: list[str], traces: str, revision: str) -> None:
    """The same cases on another revision, run by run in turn, and what the time is of its own."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "sources"
        git = ["git", "-C", str(CODE), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(base), revision], check=True)
        try:
            then = install(base, Path(folder) / "then")
            now = install(CODE, Path(folder) / "now")
            for name in names:
                old, new = run_case(name, traces, then), run_case(name, traces, now)
                row: dict[str, object] = {"case": name}
                for key in ("timeouts_per_request", "peak_mb"):
                    row[f"{key}, {revision}"] = old.get(key, old.get("failed"))
                    row[key] = new.get(key, new.get("failed"))
                if "failed" not in old | new:
                    row["time now / then"] = round(
                        new["timeouts_per_request"] / old["timeouts_per_request"], 2
                    )
                rows.append(row)
                print(json.dumps(row), flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(base)], check=True)
    print(pd.DataFrame(rows).to_string(index=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    shared = os.environ.get("LENGTHWISE_SHARED", "../shared")
    parser.add_argument("--traces", default=f"{shared}/traces", help="folder of published traces")
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="only this one")
    parser.add_argument("--compare", metavar="REV", help="with another revision, case by case")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="folder of results")
    args = parser.parse_args()
    names = args.case or list(CASES)
    if args.compare:
        compare(names, args.traces, args.compare)
        return
    rows = []
    for name in names:
        rows.append(run_case(name, args.traces))
        print(json.dumps(rows[-1]), flush=True)
    counted = {}
    for name in ("chat, saturated", "chat, own rate"):
        if not args.case or name in args.case:
            counted[name] = instructions(name, 500)
    args.out.mkdir(parents=True, exist_ok=True)
    kept = args.out / f"{commit()}.json"
    from lengthwise.api import versions

    made = {"versions": versions("lengthwise", "numpy", "simpy"), "machine": os.uname().machine}
    kept.write_text(json.dumps({**made, "cases": rows, "instructions": counted}, indent=1))
    table = pd.DataFrame(rows)
    shown = table[[c for c in (*COLUMNS, "failed") if c in table]].rename(columns=COLUMNS)
    print(shown.to_string(index=False))
    for name, count in counted.items():
        told = "not counted: that needs valgrind and the compiled loop"
        if count is not None:
            told = f"{count / 500:,.0f} a request"
        print(f"instructions, {name}: {told}")
    loops = {str(row["loop"]) for row in rows if "loop" in row}
    print(f"the loop: {' and '.join(sorted(loops)) or 'not run'}; kept: {kept}")


if __name__ == "__main__":
    main()
