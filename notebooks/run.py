"""Runs every notebook: `make notebooks`.

Fails where a cell fails, and where a cell's text is no longer what is committed, so that what
readers see is what the code says. Cells tagged `varies` (measured times, traces that are not
everywhere) are run, not compared. Nothing is written, except with `--write`: then the outputs are.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).resolve().parent
MOST_SECONDS = 600


def main(asked: list[str]) -> int:
    """Run those that are named, or all; 1 if any failed or is out of date."""
    names = [arg for arg in asked if arg != "--write"]
    paths = [HERE / name for name in names] or sorted(HERE.glob("*.ipynb"))
    return max([run(path, "--write" in asked) for path in paths], default=0)


def run(path: Path, write: bool) -> int:
    """Run one notebook and say how it went."""
    notebook = nbformat.read(path, as_version=4)
    before = [text(cell) for cell in notebook.cells]
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=MOST_SECONDS,
            record_timing=False,
            coalesce_streams=True,
            extra_arguments=["--IPKernelApp.log_level=40"],
            resources={"metadata": {"path": folder}},
        )
        try:
            client.execute()
        except CellExecutionError as error:
            print(f"{path.name}: {error}")
            return 1
    print(f"{path.name}: {time.monotonic() - began:.0f} s", flush=True)
    if write:
        notebook.metadata.language_info = {"name": "python"}
        nbformat.write(notebook, path)
        return 0
    changed = 0
    for cell, old in zip(notebook.cells, before, strict=True):
        if text(cell) != old and "varies" not in cell.metadata.get("tags", ()):
            print(f"{path.name}: out of date, run `python notebooks/run.py --write {path.name}`:")
            print(f"{cell.source}\n--- committed\n{old}\n--- now\n{text(cell)}")
            changed = 1
    return changed


def text(cell: Any) -> str:
    """What a cell printed and showed, pictures as their size in words."""
    return "".join(
        output.get("text") or output.get("data", {}).get("text/plain", "") + "\n"
        for output in cell.get("outputs", ())
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
