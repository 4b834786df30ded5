"""Simulated against measured, from what `benchmarks/gpu.sh OUT` left in OUT.

    python -m benchmarks.gpu_agreement OUT

The steps of the profile become a cost for packed and one for padded layouts; each policy's record
is simulated with its own. Means of TTFT and TPOT are to be within 10%.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from lengthwise.commands import show
from lengthwise.console import number
from lengthwise.validate.here import Profiled
from lengthwise.validate.of_record import of_record
from lengthwise.validate.predict import configured
from lengthwise.validate.report import Report, validate
from serving.record import Record

NEEDED = ("profile.parquet", "profile.json", "records.tar.gz")
LIMIT = 0.10
"""The most that a mean may be off."""


def reports(out: Path, folder: Path) -> Iterator[Report]:
    """Each record of OUT, compared; what is made on the way goes into `folder`."""
    with tarfile.open(out / "records.tar.gz") as records:
        records.extractall(folder, filter="data")
    facts = json.loads((out / "profile.json").read_text(encoding="utf-8"))
    profile = Profiled(out / "profile.parquet", facts)
    costs: dict[str, Path] = {}
    for path in sorted(p for p in folder.iterdir() if p.is_dir()):
        record = Record.load(path)
        layout = "packed" if record.config["layout"] == "packed" else "padded"
        if layout not in costs:
            costs[layout] = profile.cost_of(layout, folder / f"{layout}.json")
        measured = of_record(record, path.name)
        yield validate(measured, configured(measured, {"cost": str(costs[layout])}))


def main() -> int:
    """Compare what OUT holds, or say why not."""
    out = Path(sys.argv[1])
    missing = [name for name in NEEDED if not (out / name).is_file()]
    if missing:
        print(f"not run: no {', '.join(missing)} in {out}; benchmarks/gpu.sh {out} makes them")
        return 1
    try:
        return judge(out)
    except ValueError as error:
        print(f"not said: {error}")
        return 1


def judge(out: Path) -> int:
    """Print a line a policy and figure; 0 where all are within the limit."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("policy", "mean", "measured ms", "predicted ms", "error %"):
        table.add_column(heading, justify="left" if heading in ("policy", "mean") else "right")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for report in reports(out, Path(folder)):
            main = report.main
            for quantity in ("ttft", "tpot"):
                error = main.error[quantity]["mean"]
                held = error is not None and abs(error) <= LIMIT
                good &= held
                times = (main.measured[quantity]["mean"], main.predicted[quantity]["mean"])
                cells = ["–" if t is None else number(1e3 * t) for t in times]
                cells.append("–" if error is None else f"{100 * error:+.1f}")
                style = "" if held else "red"
                table.add_row(report.measured.name, quantity.upper(), *cells, style=style)
            device = report.measured.record.config["device"]
    show(table)
    print(f"on {device}: " + ("all" if good else "NOT all") + f" within {LIMIT:.0%}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
