"""The package as it is installed: the loop compiled, and the same to the last bit."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FILES = """
import importlib, json, sys
print(json.dumps([importlib.import_module(name).__file__ for name in sys.argv[1:]]))
"""

RUN = """
import sys, sim.engine
from lengthwise.cli import main
assert sim.engine.__file__.endswith(".py") == (sys.argv.pop(1) == "sources"), sim.engine.__file__
main()
"""

ON_INSTALLED = """
import sys, pytest
import lengthwise, policies, serving, sim, traces  # as installed, before pytest finds the sources
sys.exit(pytest.main(sys.argv[1:]))
"""

NAIVE_LOOP, RECORDINGS, USERS = (
    "test_reference.py",
    "policies/test_conform.py",
    "test_user_policy.py",
)
"""What a record must equal, and what users build on the package."""


def hot_modules() -> list[str]:
    """What setup.py compiles."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    found = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    return [name.removesuffix(".py").replace("/", ".") for name in ast.literal_eval(found[0])]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder from which the installed package is found, not its sources."""
    folder = tmp_path_factory.mktemp("elsewhere")
    command = [sys.executable, "-c", FILES, *hot_modules()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    files = [Path(name) for name in json.loads(done.stdout)]
    if any(ROOT in file.parents and "site-packages" not in file.parts for file in files):
        pytest.skip("an editable install runs the sources")
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler: the sources run as they are")
    assert [file for file in files if file.suffix == ".py"] == []
    return folder


@pytest.mark.parametrize("file", [NAIVE_LOOP, RECORDINGS, USERS])
def test_what_holds_for_the_sources_holds_compiled(elsewhere: Path, file: str) -> None:
    command = [sys.executable, "-c", ON_INSTALLED, "-p", "no:cacheprovider"]
    path = str(ROOT / "tests" / file)
    done = subprocess.run([*command, path], cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "flags",
    [
        "--hardware h100 --rate-scale 8",
        "--hardware l40s --async-scheduling --no-jump",
        "--policy continuous --order shortest --num-gpu-blocks-override 700",
        "--policy token-aware --max-num-batched-tokens 4096",
    ],
)
def test_a_record_is_that_of_the_sources_to_the_last_bit(
    elsewhere: Path, tmp_path: Path, flags: str
) -> None:
    words = f"replay chat --limit 400 --max-model-len 8192 --quiet {flags}".split()
    for name, place in (("compiled", elsewhere), ("sources", ROOT)):
        command = [sys.executable, "-c", RUN, name, *words, "--out", str(tmp_path / name)]
        subprocess.run(command, cwd=place, check=True)
    for name in ("requests.parquet", "steps.parquet", "events.parquet", "summary.json"):
        compiled, sources = (tmp_path / which / name for which in ("compiled", "sources"))
        assert compiled.read_bytes() == sources.read_bytes(), name
