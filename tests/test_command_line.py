"""Manners of the command line: help that is whole, names that are found, records given back."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from lengthwise.cli import COMMANDS, main
from lengthwise.help_page import EXAMPLE
from serving.record import Record
from tests.shared import ROOT

FILES = ("config.json", "summary.json", "requests.parquet", "steps.parquet", "events.parquet")

Said = tuple[int, str, str]
Run = Callable[..., Said]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run a command line in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["lengthwise", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        out, err = capsys.readouterr()
        return code if isinstance(code, int) else 0, out, err

    return call


def test_a_full_disk_behind_the_output_is_a_message() -> None:
    command = [sys.executable, "-m", "lengthwise", "trace", "describe", "chat", "--json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("lengthwise: ")
    assert "Traceback" not in done.stderr


def test_a_comparison_ends_where_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path
) -> None:
    from lengthwise import api

    def cut(ready: object, *rest: object) -> Record:
        record = whole_run(ready, *rest)
        record.config["interrupted"] = True
        return record

    whole_run = api.run
    monkeypatch.setattr("lengthwise.api.run", cut)
    code, out, err = run("compare", "chat", "--limit", "5", "--out", str(tmp_path / "c"))
    assert (code, out) == (130, "")
    assert "interrupted" in err
    assert not (tmp_path / "c").exists()
    with pytest.raises(KeyboardInterrupt):
        api.compare("chat", ("static", "continuous"), limit=5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("compare chat --policies static,continuous,static", "static is given twice"),
        ("profile --model tiny --device cpu --out rows", "--out rows: a profile is a Parquet file"),
    ],
)
def test_a_mistake_is_named_before_anything_runs(arguments: str, said: str, run: Run) -> None:
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert said in err


def test_an_interrupt_says_so(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lengthwise.api.read_trace", interrupted)
    code, _, err = run("replay", "chat", "--limit", "5")
    assert code == 130
    assert "interrupted" in err


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        ("--help", "numpy pandas pydantic simpy"),
        ("replay --help", "pandas"),
        ("replay chat --limit 9 --out run", "pandas scipy matplotlib"),
    ],
)
def test_what_takes_time_is_not_imported(words: str, heavy: str, tmp_path: Path) -> None:
    code = f"""
import sys
from lengthwise.cli import main
sys.argv = ["lengthwise", *{words.split()!r}]
try:
    main()
finally:
    found = [name for name in {heavy.split()!r} if name in sys.modules]
    print(found, file=sys.stderr)
"""
    command, place = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=place, capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"


def paths() -> list[list[str]]:
    """Every command, with those of `trace`."""
    found = []
    for name, (place, _) in COMMANDS.items():
        module, _, attribute = place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if isinstance(command, typer.Typer):
            callbacks = [c.callback for c in command.registered_commands if c.callback]
            found += [[name, c.__name__] for c in callbacks]
        else:
            found.append([name])
    return found


@pytest.mark.parametrize("command", paths(), ids=" ".join)
def test_help_is_grouped_whole_and_has_an_example(command: list[str], run: Run) -> None:
    code, out, _ = run(*command, "--help")
    assert code == 0
    before, _, rest = out.partition("\nExample:\n")
    example, _, after = rest.partition("\n")
    assert f"lengthwise {' '.join(command)} " in f"{example} "
    assert EXAMPLE not in out
    assert max(map(len, (before + after).splitlines())) <= 80
    assert not re.search(r"--[\w-]*…", out)  # no flag is cut off
    if command == ["replay"]:
        for panel in ("The trace:", "The policy: who runs next:", "Memory:", "Time:", "Options:"):
            assert f"\n{panel}\n" in out
        assert "--enable-prefix-caching / --no-enable-prefix-caching" in out


def test_the_list_of_commands_has_examples(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert all(f"  {name}" in out for name in COMMANDS)
    assert re.search(r"Examples:\n +lengthwise compare chat", out)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("repaly chat", "'replay'"),
        ("replay chat --polcy static", "--policy"),
        ("replay chta", "chat"),
        ("replay chat --policy chunked-prefil", "chunked-prefill"),
        ("replay chat --model lama-3.1-8b", "llama-3.1-8b"),
        ("replay chat --hardware h10", "h100"),
        ("replay chat --layout paked", "packed"),
        ("replay chat --lifecycle drian", "drain"),
        ("compare chat --policies static,contnuous", "continuous"),
    ],
)
def test_a_name_that_is_nearly_right_is_suggested(arguments: str, meant: str, run: Run) -> None:
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert re.search(rf"(did you mean|Nearest:|Possible options:) {re.escape(meant)}", err, re.I)


RUNS: dict[str, dict[str, Any]] = {
    "chunks": {
        "policy": "chunked-prefill",
        "max_num_batched_tokens": 1024,
        "num_gpu_blocks_override": 1500,
        "async_scheduling": True,
        "seed": 3,
    },
    "buckets": {"policy": "bucketing", "bucket_bounds": [500, 2000], "max_wait_ms": 20.5},
    "fixed time": {"policy": "static", "cost": "fixed", "step_ms": 12.25, "rate_scale": 1.7},
    "replicas": {"policy": "continuous", "replicas": 2, "model": "qwen3-8b", "hardware": "l40s"},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_record_given_back_is_made_again_to_the_bit(name: str, run: Run) -> None:
    fields = {"trace": "chat", "limit": 60, **RUNS[name]}
    Path("run.json").write_text(json.dumps(fields))
    toml = "\n".join(f"{key} = {json.dumps(value)}" for key, value in fields.items())
    Path("run.toml").write_text(toml)
    yaml = "\n".join(f"{k.replace('_', '-')}: {json.dumps(v)}" for k, v in fields.items())
    Path("run.yaml").write_text(yaml)
    flags = []
    for key, value in fields.items():
        flag = "--" + key.replace("_", "-")
        if isinstance(value, list):
            flags += [flag, ",".join(map(str, value))]
        elif value is True:
            flags.append(flag)
        elif key != "trace":
            flags += [flag, str(value)]
    assert run("replay", "chat", *flags, "--out", "flags")[0] == 0
    for kind in ("json", "toml", "yaml"):
        assert run("replay", "--config", f"run.{kind}", "--out", kind)[0] == 0
    assert run("replay", "--config", "flags/config.json", "--out", "again")[0] == 0
    for folder in ("json", "toml", "yaml", "again"):
        for file in FILES:
            assert Path(folder, file).read_bytes() == Path("flags", file).read_bytes(), file


def test_a_flag_comes_before_the_file(run: Run) -> None:
    Path("run.yaml").write_text("trace: chat\nlimit: 30\npolicy: static\n")
    assert run("replay", "--config", "run.yaml", "--limit", "20", "--out", "r")[0] == 0
    kept = json.loads(Path("r/config.json").read_text())["run"]
    assert (kept["limit"], kept["policy"], kept["trace"]) == (20, "static", "chat")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trace: chat\nmax_seqs: 3\n", "--max-seqs: there is no such option"),
        ("trace: chat\nlimit: none\n", "--limit none"),
        ("- chat\n", "expected fields and values"),
        ("a: [\n", "--config run.yaml"),
    ],
)
def test_a_bad_file_is_one_message(text: str, said: str, run: Run) -> None:
    Path("run.yaml").write_text(text)
    code, out, err = run("replay", "--config", "run.yaml")
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_file_that_a_policy_cannot_open_is_named(tmp_path: Path, run: Run) -> None:
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    def form(self, queue, room, now):\n        open('/nowhere/settings')\n"
    )
    policy, out = f"{tmp_path / 'mine.py'}:Mine", tmp_path / "run"
    status, _, said = run("replay", "chat", "--limit", "2", "--policy", policy, "--out", str(out))
    assert (status, out.exists()) == (2, False)
    assert "'/nowhere/settings'" in said
    assert "cannot write" not in said


def test_quiet_verbose_and_json(run: Run) -> None:
    how = ("chat", "--limit", "20", "--force")
    code, plain, err = run("replay", *how, "--out", "r")
    assert (code, err) == (0, "")
    assert "note: max_model_len is" in plain
    code, quiet, err = run("replay", *how, "--out", "r", "--quiet")
    assert (code, err) == (0, "")
    assert "note:" not in quiet
    code, out, err = run("replay", *how, "--out", "r", "--json", "--verbose")
    assert json.loads(out)["completed"] == 20
    assert "chunked-prefill: run.limit = 20\n" in err
    assert "chunked-prefill: max_num_batched_tokens = 8192\n" in err
    code, out, err = run("compare", *how, "--policies", "static,continuous", "--out", "c", "--json")
    assert list(json.loads(out)["policies"]) == ["static", "continuous"]
    assert err == ""


def test_nothing_is_coloured_or_drawn_where_nobody_looks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lengthwise", "compare", "chat", "--limit", "20", "--out", "c"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "chunked-prefill" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["rep"], ["replay", "report"]),
        (["replay", "--max-num"], ["--max-num-seqs", "--max-num-batched-tokens"]),
        (["replay", "--policy", "c"], ["continuous", "chunked-prefill"]),
        (["replay", "--hardware", "rtx"], ["rtx-4090", "rtx-pro-6000"]),
        (["compare", "--model", "mis"], ["mistral-7b"]),
    ],
)
def test_a_shell_completes(
    words: list[str], offered: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_LENGTHWISE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(["lengthwise", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert run()[1].split() == offered
