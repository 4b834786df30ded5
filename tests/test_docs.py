"""Documentation that stays true: its code runs, its links and tables are complete."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from serving.tables import EVENTS, KINDS, REQUESTS, STEPS
from tests.shared import ROOT
from tests.test_metrics import DESIGN_KEYS
from tests.test_slo import SLO_KEYS

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)?(?: file=(\S+))?\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Language, file name and text of each code block."""
    return [(a or "", b or "", c) for a, b, c in FENCE.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_code_runs_as_written(page: Path, tmp_path: Path) -> None:
    """`sh` blocks line by line, `python` blocks whole, in one folder; `file=` blocks are saved."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }

    def run(command: list[str]) -> None:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"

    for language, name, text in blocks(page):
        if name:
            (tmp_path / name).write_text(text)
        elif language == "python" and not text.startswith(
            ">>>"
        ):  # sessions have tests of their own
            run([sys.executable, "-c", text])
        elif language == "sh":
            for line in text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words and words[0] != "make":  # `make test` runs these tests, and `make demo`
                    run(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name} links to {target}, which is not there"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, f"{page.name} links to {target}: no such heading"


def named(page: str, section: str = "") -> set[str]:
    """The names in code type in the first cells of a page's (or section's) tables."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if section:
        text = re.split(r"^## ", text.split(f"## {section}\n", 1)[1], maxsplit=1, flags=re.M)[0]
    cells = re.findall(r"^\| (`[^|]*) \|", text, re.M)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_column_and_kind_is_explained() -> None:
    assert named("record.md", "Requests") == set(REQUESTS)
    assert named("record.md", "Steps") == set(STEPS)
    assert named("record.md", "Events") == set(EVENTS) | set(KINDS)


def test_every_figure_is_explained() -> None:
    said = named("metrics.md")
    for key in (*DESIGN_KEYS, *SLO_KEYS):
        latency = re.fullmatch(r"(mean|median|p90|p99|std)_(ttft|tpot|itl|e2el|queue)_ms", key)
        assert key == "policy" or (latency[2] if latency else key) in said | {
            "mean_grouping_wait_ms"
        }, key


def test_readme_opens_with_the_two_commands_and_has_the_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [line.split(" #")[0].strip() for line in text.splitlines()]
    assert lines[2:5] == ["```sh", "make demo", "make test"]
    assert "docs/images/latency.png" in text
    assert len(lines) < 60


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebooks_are_committed_as_they_ran(path: Path) -> None:
    """`make notebooks` runs them; here: cells ran in order, none failed, they assert."""
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    assert sum("image/png" in o.get("data", {}) for o in outputs) >= 3
    code = "\n".join("".join(cell["source"]) for cell in cells)
    assert code.count("assert ") >= 4
    assert "../shared" not in code
    assert "/work" not in path.read_text()
