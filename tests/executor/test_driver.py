"""The loop on a real clock: arrivals, times, what is counted, Ctrl-C, and the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from executor.attention import Counter
from executor.cache import KVCache
from executor.driver import Driver
from executor.execute import Engine, PageBlocks
from executor.inputs import Inputs
from executor.pages import Pager
from executor.runner import Runner
from executor.tokens import Tokens
from lengthwise.execute_cli import execute as command
from lengthwise.on_model import execute, fit_lengths
from policies.compose import KNOWN, NAMED, Point, Settings, compose
from policies.continuous import Continuous
from serving.core import Core
from serving.record import Record
from serving.recorder import FINISH, Recorder
from serving.request import Request
from sim.engine import PolicyError
from sim.memory import DoesNotFitError
from sim.models import MODELS
from tests.executor.nano import NANO, alone, engine, mixed, run
from traces.trace import Trace


@pytest.fixture(scope="module")
def model() -> Engine:
    return engine()


@pytest.mark.parametrize("policy", [*KNOWN, "drain-packed"])
def test_the_models_own_count_is_the_records(model: Engine, policy: str) -> None:
    point = KNOWN.get(policy, Point("fcfs", "packed", "drain"))
    found = run(model, mixed(), point)
    columns = found.recorder.step_columns()
    slots = columns["prefill_slots"] + columns["decode_slots"]
    pairs = columns["prefill_computed_pairs"] + columns["decode_computed_pairs"]
    assert found.facts["computed_slots"] == slots.sum()
    assert found.facts["computed_pairs"] == pairs.sum()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_arrivals_are_waited_for(model: Engine, asynchronous: bool) -> None:
    arrivals = np.array([0.0, 0.15, 0.15, 0.3])
    trace = Trace(arrivals, np.full(4, 20), np.full(4, 5), name="late")
    found = run(model, trace, "chunked-prefill", async_scheduling=asynchronous)
    columns = found.recorder.step_columns()
    events = found.recorder.event_rows()
    admitted = events[events[:, 2] == 0]
    scheduled = columns["start_s"][admitted[:, 0]]
    late = scheduled - arrivals[admitted[:, 1]]
    assert admitted[:, 1].tolist() == [0, 1, 2, 3]
    assert (late >= 0).all()
    assert (columns["end_s"] >= columns["start_s"]).all()
    assert (columns["start_s"][1:] >= columns["end_s"][:-1]).all()
    spent = found.spent
    assert 0 <= spent.idle_s < spent.wall_s
    assert spent.wall_s >= columns["end_s"][-1] >= 0.3
    assert spent.outside_s >= 0 or asynchronous


def test_an_interrupt_ends_the_run_behind_a_whole_step(model: Engine) -> None:
    class AfterTen(Recorder):
        """Ten requests that end are enough."""

        ended = 0

        def __init__(self) -> None:
            super().__init__()
            self.log = self.count

        def count(self, event: Iterable[int]) -> None:
            row = list(event)
            self.events += row
            self.ended += row[2] == FINISH
            if row[2] == FINISH and self.ended >= 10:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    recorder = AfterTen()
    found = run(model, mixed(), "continuous", recorder=recorder)
    assert signal.getsignal(signal.SIGINT) is before
    assert found.interrupted
    assert found.recorder is recorder
    assert 10 <= recorder.ended < 40
    assert (recorder.event_rows()[:, 2] == FINISH).sum() == recorder.ended
    columns = found.recorder.step_columns()
    assert (
        found.facts["computed_slots"] == (columns["prefill_slots"] + columns["decode_slots"]).sum()
    )


class Stepped(Driver):
    """A driver whose clock moves on by one whenever it is read."""

    _reading = 0.0

    def _now(self) -> float:
        self._reading += 1
        return self._reading


def stepped(
    model: Engine, requests: list[Request], order: str, blocks: int
) -> tuple[Recorder, Tokens]:
    prompts = np.array([r.prompt for r in requests])
    tokens = Tokens(prompts, np.array([r.output for r in requests]), NANO.vocab)
    pager = Pager(blocks, 16, 256)
    cache = KVCache(NANO, blocks, 16, heads_first=True)
    inputs = Inputs(tokens, cache, pager, model.backend, Counter())
    recorder = Recorder()
    settings = Settings(256, order=order, block_size=16, usable_blocks=blocks)
    planner = compose(NAMED["chunked-prefill"], settings, recorder)
    assert isinstance(planner, Continuous)
    planner.blocks.listener = pager
    Stepped(Core(planner, recorder), recorder, inputs, Runner(model.model, tokens)).run(
        iter(requests)
    )
    assert pager.free == blocks
    return recorder, tokens


def test_a_step_without_rows_is_survived(model: Engine) -> None:
    """The first that runs needs a block and is, as the least urgent, itself the one to go."""
    requests = [Request(0, 0.0, 16, 40, 5), Request(1, 4.0, 16, 40, 0)]
    recorder, tokens = stepped(model, requests, "priority", 4)
    columns = recorder.step_columns()
    empty = columns["prefill_tokens"] + columns["decode_tokens"] == 0
    assert empty.any()
    assert (columns["end_s"][empty] == columns["start_s"][empty]).all()
    for i in range(2):
        assert tokens.output(i).tolist() == alone(model, tokens.prompt(i).tolist(), 40)


def test_a_policy_that_leaves_requests_waiting_is_told(model: Engine) -> None:
    with pytest.raises(PolicyError, match="left waiting"):
        run(model, mixed(4), Point(Never, "packed", "drain"))


class Never:
    """A grouping that takes nobody."""

    def form(self, queue: object, room: object, now: float) -> None:
        return None


def test_runs_of_blocks_are_single_for_the_pager() -> None:
    blocks = PageBlocks(20, 16, per_hash=2)
    request = Request(0, 0.0, 70, 50, hashes=[7, 8])
    blocks.hit(request)
    blocks.enter(request, 0, 70)
    blocks.filled(request, 70)
    kept = request.cached
    blocks.take(2)
    blocks.release(request, 110, 110)
    assert [(run.begin, run.end) for run in kept] == [
        (0, 1),
        (1, 2),
        (0, 1),
        (1, 2),
        (4, 5),
        (5, 6),
    ]


def test_too_much_memory_is_an_error_with_sizes(model: Engine) -> None:
    with pytest.raises(DoesNotFitError, match=r"GiB of KV cache, .* GiB are free"):
        run(model, mixed(4), "continuous", override=1 << 40)


def test_auto_makes_the_longest_fit() -> None:
    trace = mixed()
    for limit in (7, 50, 100, 1000):
        fitted, factor = fit_lengths(trace, "auto", limit)
        assert fitted.longest <= limit
        assert int(fitted.prompt_tokens.min()) >= 1
        assert (factor == 1) == (limit >= trace.longest)
    assert fit_lengths(trace, "0.5", 0)[1] == 0.5
    with pytest.raises(ValueError, match="--scale-lengths half: give a factor, or auto"):
        fit_lengths(trace, "half", 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hardware": "h100"}, "--hardware"),
        ({"device": "gpu"}, "--device gpu"),
        ({"dtype": "fp8"}, "--dtype fp8"),
        ({"attention": "magic"}, "--attention magic"),
    ],
)
def test_mistakes_name_the_flag(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        execute(mixed(2), "continuous", **options)


def test_the_command(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command)
    folder = tmp_path / "run"
    asked = "chat --limit 6 --policy continuous --offline --scale-lengths auto --json"
    asked += f" --max-model-len 64 --out {folder}"
    result = CliRunner().invoke(app, asked.split())
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["completed"] == 6
    config = Record.load(folder).config
    assert config["backend"] == "measured"
    assert config["model"] == "tiny"
    assert config["dtype"] == "fp32"
    assert config["attention"] == "sdpa"
    assert 0 < config["length_factor"] < 1
    assert config["versions"]["torch"]
    again = CliRunner().invoke(app, asked.split())
    assert again.exit_code != 0


def test_the_simulators_fields_in_a_config_are_refused(tmp_path: Path) -> None:
    """At their defaults, as a simulated record has them, they ask for nothing."""
    app = typer.Typer()
    app.command()(command)
    config = tmp_path / "config.yaml"
    asked = f"chat --limit 2 --offline --max-model-len 64 --scale-lengths auto --config {config}"
    config.write_text("policy: static\nhardware: h100\n")
    refused = CliRunner().invoke(app, asked.split())
    assert isinstance(refused.exception, ValueError)
    assert f"--config {config}: hardware: it is the simulator's" in str(refused.exception)
    config.write_text("policy: continuous\ndtype: bf16\njump: true\n")
    taken = CliRunner().invoke(app, [*asked.split(), "--out", str(tmp_path / "run"), "--json"])
    assert taken.exit_code == 0, taken.output
    assert json.loads(taken.stdout)["policy"] == "continuous"


def test_execute_is_exported_without_pytorch() -> None:
    code = """
import sys, lengthwise
assert lengthwise.execute.__module__ == "lengthwise.on_model"
assert "torch" not in sys.modules
record = lengthwise.execute("chat", "continuous", limit=2, offline=True, max_model_len=64,
                            scale_lengths="auto")
assert "torch" in sys.modules and lengthwise.execute.__module__ == "lengthwise.on_model"
print(record.summary["completed"], record.config["backend"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.split() == ["2", "measured"], done.stderr


def test_bytes_of_a_measured_run_are_those_of_its_dtype() -> None:
    """A decode of one row moves every weight of the layers, the LM head and the KV once."""
    trace = Trace(np.zeros(1), np.array([8]), np.array([3]), name="one")
    shape = MODELS["tiny"]
    for dtype, size in (("fp32", 4), ("bf16", 2)):
        steps = execute(trace, "continuous", model="tiny", dtype=dtype).steps
        kv = 2 * shape.layers * shape.kv_heads * shape.head_dim
        numbers = shape.parameters() - 17 * shape.hidden + kv * steps.decode_useful_pairs[1]
        assert steps.bytes[1] == pytest.approx(size * numbers)
