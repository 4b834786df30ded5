"""The view of a run that goes on: true to what was recorded, silent when nobody looks."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import lengthwise
from lengthwise import glimpse
from lengthwise.glimpse import Glimpse, Looker
from lengthwise.live import View, live
from policies.sglang.planner import NOBODY
from serving.recorder import FINISH, ROW, SETTLE, Recorder
from serving.step import PACKED, Features, Step
from traces import Trace

FEW = Trace(
    np.linspace(0, 4, 200),
    np.where(np.arange(200) == 7, 900, 100),
    np.full(200, 30),
)
HOW: dict[str, Any] = {"cost": "fixed", "step_ms": 20, "max_num_seqs": 8, "max_model_len": 512}


class Looking(Recorder):
    """A recorder that is looked at after every step and every run."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.looker = Looker(self, len(FEW))
        self.seen: list[tuple[Glimpse, int]] = []

    def step(self, *what: Any) -> None:
        super().step(*what)
        self.seen.append((self.looker.look(), len(self) - len(self.ends)))

    def run(self, *what: Any) -> None:
        super().run(*what)
        self.seen.append((self.looker.look(), len(self) - len(self.ends)))


@pytest.mark.parametrize("policy", ["dynamic-padding", "chunked-prefill"])
@pytest.mark.parametrize("lot", [7, SETTLE])
def test_every_look_agrees_with_the_record(
    policy: str, lot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders = []

    def watched(sink: Any, _: int) -> Looking:
        recorders.append(Looking(sink, lot))
        return recorders[0]

    monkeypatch.setattr("lengthwise.recording.Recorder", watched)
    record = lengthwise.replay(FEW, policy, num_gpu_blocks_override=90, **HOW)
    (recorder,) = recorders
    steps, requests = record.steps, record.requests
    refused_at = requests.loc[7, "arrival_s"]
    assert (requests["status"] == "refused").sum() == 1
    tokens, last = (steps["prefill_tokens"] + steps["decode_tokens"]).to_numpy(), 0
    for seen, packed in recorder.seen:
        if seen.steps == last:  # all rows were packed just before
            continue
        step = steps.iloc[seen.steps - 1]
        assert seen.seconds == step["end_s"]
        assert (seen.waiting, seen.running) == (step["waiting"], step["running"])
        assert seen.kv_blocks == step["kv_blocks_used"]
        if lot == SETTLE:
            assert seen.tokens == pytest.approx(tokens[max(last, packed) : seen.steps].mean())
        finished = (requests["finished_s"] < step["end_s"] - 1e-9).sum()
        assert seen.done == finished + (step["start_s"] >= refused_at)
        last = seen.steps
    assert last > 0.9 * len(steps)
    assert recorder.looker.look().done == len(FEW)
    if lot == SETTLE:
        assert recorder.looker.look().seconds == steps["end_s"].iloc[-1]


def test_nothing_has_run_yet_or_half_a_step_is_written() -> None:
    recorder = Recorder()
    looker = Looker(recorder, 5)
    assert looker.look() == Glimpse(5)
    recorder.log((0, 3, FINISH, 1, -1))
    recorder.rows += [1] * len(ROW)
    assert looker.look() == Glimpse(5, done=1)


def test_told_from_a_thread_and_once_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glimpse, "PERIOD", 0.001)
    told: list[Glimpse] = []
    record = lengthwise.replay(FEW, "chunked-prefill", progress=told.append, **HOW)
    assert told[-1].done == told[-1].total == 200
    assert told[-1].steps == len(record.steps)
    assert [g.steps for g in told] == sorted(g.steps for g in told)
    plain = lengthwise.replay(FEW, "chunked-prefill", **HOW)
    assert plain.summary == record.summary


def test_what_the_watcher_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glimpse, "PERIOD", 0.0)

    def fails(now: Glimpse) -> None:
        raise OSError("the terminal is gone")

    with pytest.raises(OSError, match="the terminal is gone"):
        lengthwise.replay(FEW, "chunked-prefill", progress=fails, **HOW)


def shown(view: View, **how: Any) -> str:
    console = Console(file=io.StringIO(), width=80, **how)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_view() -> None:
    view = View("[x] replaying", 60_000, 256, 27_816)
    assert "0 of 60,000" in shown(view)
    view.show(Glimpse(60_000, 30_000, 2112.6, 68_098, 1283.2, 44, 128, 20_862))
    view.show(Glimpse(60_000, 45_000, 2112.6, 68_098, 1283.2, 22, 128, 20_862))
    lines = [line.rstrip() for line in shown(view).splitlines()]
    full, half, three = "█" * 32, "█" * 16 + "░" * 16, "█" * 24 + "░" * 8
    assert lines[0].startswith("[x] replaying: 0:00:00 so far")
    assert lines[1:] == [
        f"  requests {three} 45,000 of 60,000",
        f"  waiting  {half} 22, 44 at most",
        f"  running  {half} 128 of 256 seats",
        f"  KV       {three} 75.0% of 27,816 blocks",
        "  clock    2,112.6 s, 68,098 steps, 1,283 tokens a step",
    ]
    assert max(map(len, lines)) <= 80
    unlimited = View("executing", 10, 8)
    unlimited.show(Glimpse(10, kv_blocks=1234))
    assert f"{full} 1,234 blocks" in shown(unlimited)
    assert "\x1b[" in shown(view, force_terminal=True, color_system="standard")
    assert "\x1b[3" not in shown(view, force_terminal=True, color_system="standard", no_color=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with live("replaying", 10, 8) as progress:
        assert progress is None
    assert capsys.readouterr() == ("", "")
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with live("replaying", 10, 8, quiet=True) as progress:
        assert progress is None
    assert screen.getvalue() == ""
    with live("replaying", 10, 8) as progress:
        assert progress is not None
        progress(Glimpse(10, 5))
    assert "5 of 10" in screen.getvalue()
    screen.truncate(0)
    monkeypatch.setenv("TERM", "dumb")
    with live("replaying", 10, 8) as progress:
        assert progress is None


def test_an_interrupt_between_two_lines_leaves_whole_steps() -> None:
    recorder = Recorder()
    step = Step(0, PACKED, (), NOBODY, (), Features(decode_tokens=1), 0, 1, 4)
    recorder.step(step, 0.0, 1.0)
    recorder.run(step._replace(id=1), 1.0, [2.0, 3.0], [4, 5])
    recorder.ends += [4.0, 5.0]  # of a run whose row never came
    recorder.blocks.append(6)
    columns = recorder.step_columns()
    assert columns["end_s"].tolist() == [1.0, 2.0, 3.0]
    assert columns["kv_blocks_used"].tolist() == [4, 4, 5]
    assert columns["start_s"].tolist() == [0.0, 1.0, 2.0]
