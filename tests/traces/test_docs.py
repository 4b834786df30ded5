"""The page on traces does what it says: its commands run, its tables name what there is."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lengthwise.trace_cli import app
from tests.shared import ROOT
from tests.traces.files import put
from traces import load
from traces.formats import FORMATS
from traces.generate import generate
from traces.spec import load_spec
from traces.write import WRITERS, write

PAGE = ROOT / "docs" / "traces.md"


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(load("chat", limit=4000, seed=2), tmp_path / "requests.csv")
    commands = re.findall(r"^\$ lengthwise trace (.+)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) > 10
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command))
        assert result.exit_code == 0, f"{command}\n{result.output}"


def test_the_python_lines_print_what_they_show() -> None:
    assert doctest.testfile(str(PAGE), module_relative=False).failed == 0


def test_the_spec_is_one(tmp_path: Path) -> None:
    found = re.search(r"```yaml\n(.+?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    assert len(generate(load_spec(put(tmp_path, "s.yaml", found[1])))) == 300


def test_every_format_is_named() -> None:
    text = PAGE.read_text()
    assert all(f"`{f.name}`" in text for f in FORMATS)
    assert all(f"`{name}`" in text for name in WRITERS)
