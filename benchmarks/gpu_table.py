"""The results of `benchmarks/gpu.sh` as a short table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from serving.record import Record

GOALS = {
    "decode_of_copy": (">=", 0.80),
    "prefill_of_matmul": (">=", 0.65),
    "loop_outside_ms_per_step": ("<=", 0.3),
    "packed_over_padded": ("<=", 1.25 * 0.344),
    "padded_over_packed_full_width": ("<=", 1.15),
}
"""What a GPU run should reach; on a CPU, with small sizes, the figures mean little."""


def figure_lines(found: dict[str, Any]) -> list[str]:
    """Each figure, and whether it reaches its goal."""
    rows = [f"{key}: {value}" for key, value in found.items() if not isinstance(value, float)]
    for name, value in found.items():
        if not isinstance(value, float):
            continue
        sign, goal = GOALS.get(name, ("", 0.0))
        met = value >= goal if sign == ">=" else value <= goal
        verdict = f"   {sign} {goal:.3g}: {'met' if met else 'MISSED'}" if sign else ""
        rows.append(f"{name:<32}{value:>12.4g}{verdict}")
    return rows


def record_lines(folder: Path) -> list[str]:
    """A line a record."""
    rows = [f"{'policy':<18}{'done':>10}{'steps':>8}{'s':>9}{'out tok/s':>11}{'TTFT ms':>10}"
            f"{'ITL ms':>9}{'GiB':>7}{'GPU':>6}"]  # fmt: skip
    for path in sorted(p for p in folder.iterdir() if p.is_dir()):
        record = Record.load(path)
        s, c = record.summary, record.config
        busy = c.get("gpu_utilisation")
        rows.append(
            f"{path.name:<18}{s['completed']:>6}/{s['num_prompts']:<3}{s['steps']:>8}"
            f"{s['duration']:>9.1f}{s['output_throughput']:>11.0f}{s['median_ttft_ms']:>10.0f}"
            f"{s['median_itl_ms']:>9.2f}{c['peak_memory_bytes'] / 2**30:>7.1f}"
            + (f"{busy:>6.0%}" if busy is not None else f"{'-':>6}")
        )
    return rows


def main() -> None:
    """Print both, and say what is missing."""
    figures, records = Path(sys.argv[1]), Path(sys.argv[2])
    if figures.stat().st_size:
        print("\n".join(figure_lines(json.loads(figures.read_text(encoding="utf-8")))))
    else:
        print("no figures: see log.txt")
    print("\n".join(record_lines(records)))


if __name__ == "__main__":
    main()
