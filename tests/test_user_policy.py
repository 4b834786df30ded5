"""Policies of one's own, and what is said of choices that make no sense."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lengthwise
from policies.compose import PolicyChoiceError
from policies.load import load_policy
from sim.engine import PolicyError
from traces import Trace

LIFECYCLES = ("drain",)

PAIRS = '''
from serving.step import Wait


class Pairs:
    """Two at a time; alone only after ten milliseconds."""

    def form(self, queue, room, now):
        first = queue.peek()
        if first is not None and len(queue) < 2 and now < first.arrival + 0.01:
            return Wait(until=first.arrival + 0.01)
        while room.taken < 2 and (request := queue.peek()) is not None and room.fits(request):
            queue.pop()
            room.take(request)


class Never:
    def form(self, queue, room, now):
        return None


class Late:
    def form(self, queue, room, now):
        return Wait(until=now - 1.0) if len(queue) else None


class Seated:
    """Takes the settings."""

    def __init__(self, settings):
        self.most = settings.max_num_seqs

    form = Pairs.form


class Greedy:
    """Takes whatever waits, whether there is room or not."""

    def form(self, queue, room, now):
        while len(queue):
            room.take(queue.pop())


class Peeks:
    """Forgets to take its request out of the queue."""

    def form(self, queue, room, now):
        if queue.peek() is not None and room.fits(queue.peek()):
            room.take(queue.peek())


class Drops:
    """Takes a request out of the queue and does nothing with it."""

    def form(self, queue, room, now):
        if len(queue):
            queue.pop()


from policies.drain import Drain
from policies.layout import PadToLongest


class Mine(Drain):
    """A planner of one's own."""

    def __init__(self, settings, blocks, queue, recorder):
        super().__init__(settings.max_num_seqs, PadToLongest(), blocks, queue, recorder)


from policies.admission import Limits
from policies.continuous import Continuous


class Counting(Continuous):
    """One that builds on ours, and is asked wherever ours would be."""

    def __init__(self, settings, blocks, queue, recorder):
        limits = Limits(settings.max_num_batched_tokens, settings.max_num_seqs)
        super().__init__(limits, blocks, queue, recorder)
        self.entered = self.left = 0

    def admitted(self, request, hit):
        self.entered += 1
        super().admitted(request, hit)

    def complete(self, step):
        finished = super().complete(step)
        self.left += len(finished)
        if self.entered - self.left != len(self.running):
            raise RuntimeError("somebody entered unseen")
        return finished


number = 3
'''


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "pairs_of_mine.py"
    path.write_text(PAIRS)
    return path


def run(policy: str, **options: Any) -> lengthwise.Record:
    return lengthwise.replay("chat", policy, limit=40, cost="fixed", step_ms=5.0, **options)


@pytest.mark.parametrize("name", ["Pairs", "Seated"])
def test_a_grouping_from_a_file(module: Path, name: str) -> None:
    record = run(f"{module}:{name}")
    assert record.summary["completed"] == 40
    assert record.steps.prefill_rows.max() == 2
    assert record.requests.grouping_wait_s.max() == pytest.approx(0.01)


@pytest.mark.parametrize("lifecycle", ["continuous", "chunked-prefill"])
def test_a_grouping_under_another_lifecycle(module: Path, lifecycle: str) -> None:
    record = run(f"{module}:Pairs", lifecycle=lifecycle, max_num_batched_tokens=8192)
    assert record.summary["completed"] == 40
    assert record.summary["padding_ratio"] == 0


def test_a_planner_from_a_file(module: Path) -> None:
    record = run(f"{module}:Mine", max_num_seqs=4)
    assert record.requests.equals(run("dynamic-padding", max_num_seqs=4).requests)


def test_a_planner_built_on_ours(module: Path) -> None:
    record = run(f"{module}:Counting", max_num_batched_tokens=1024)
    ours = run("chunked-prefill", max_num_batched_tokens=1024)
    assert record.requests.equals(ours.requests)


def test_a_policy_from_a_module(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(module.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert run("pairs_of_mine:Pairs").summary["completed"] == 40
    assert sys.path.index(str(module.parent)) == len(sys.path) - 1  # behind our own packages


def test_a_policy_from_an_entry_point(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = load_policy(f"{module}:Pairs")

    class Entry:
        def __init__(self, name: str) -> None:
            self.name = name

        def load(self) -> Any:
            return pairs if self.name == "pairs" else "no class"

    monkeypatch.setattr("policies.load.entry_points", found := Found(Entry("else"), Entry("pairs")))
    assert load_policy("pairs") is pairs
    assert run("pairs").summary["completed"] == 40
    assert found.groups == {"lengthwise.policies"}
    with pytest.raises(PolicyChoiceError, match="--policy else: a policy is a class with `form`"):
        load_policy("else")
    assert load_policy("static") == "static"  # nobody's entry point hides one of the six


class Found:
    """Entry points, and the groups that were asked for."""

    def __init__(self, *entries: Any) -> None:
        self.entries = entries
        self.groups: set[str] = set()

    def __call__(self, group: str) -> Any:
        self.groups.add(group)
        return self.entries


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("{file}:Nobody", "has no class Nobody"),
        ("{file}:number", "a policy is a class with `form`"),
        ("{folder}/none.py:X", "no such file"),
        ("no_such_module_here:X", "No module named"),
        ("chunked", "did you mean chunked-prefill"),
    ],
)
def test_what_is_no_policy_is_said(module: Path, name: str, said: str) -> None:
    with pytest.raises(PolicyChoiceError, match=said):
        run(name.format(file=module, folder=module.parent))


def test_a_file_that_does_not_parse(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("class X(:\n")
    with pytest.raises(PolicyChoiceError, match="invalid syntax"):
        run(f"{broken}:X")


@pytest.mark.parametrize(
    ("name", "said"), [("Never", "left waiting"), ("Late", "asks at .* to be woken")]
)
def test_a_policy_that_never_ends_is_stopped(module: Path, name: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        run(f"{module}:{name}")


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Greedy", "the policy takes request 2, for which there is no seat or no memory: ask"),
        ("Peeks", "the policy takes request 0 twice: pop it from the queue first"),
        ("Drops", "3 requests are left waiting"),
    ],
)
def test_a_policy_that_breaks_the_rules_is_stopped(
    module: Path, name: str, said: str, lifecycle: str
) -> None:
    three = Trace(np.zeros(3), np.full(3, 5), np.full(3, 4))
    with pytest.raises(ValueError, match=said):
        lengthwise.replay(
            three, f"{module}:{name}", lifecycle=lifecycle, cost="fixed", step_ms=5.0,
            max_num_seqs=2,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "options", "said"),
    [
        ("continuous", {"layout": "longest"}, "leave --layout out"),
        ("static", {"layout": "wide"}, "--layout wide: unknown"),
        ("static", {"lifecycle": "drian"}, "did you mean drain"),
        ("static", {"max_num_batched_tokens": 100}, "has no token budget"),
        ("continuous", {"max_num_batched_tokens": 100}, "is below --max-model-len"),
        ("bucketing", {"bucket_bounds": (5, 3)}, "rising token counts"),
        ("bucketing", {"max_wait_ms": -1.0}, "must not be below 0"),
        ("chunked-prefill", {"bucket_bounds": (5,)}, "does not use it"),
        ("static", {"watermark": 0.1}, "does not use it"),
        ("static", {"order": "longest"}, "--order longest: unknown"),
        ("static", {"max_num_seqs": 0}, "--max-num-seqs must be at least 1"),
        ("chunked-prefill", {"num_gpu_blocks_override": 1}, "no usable KV block"),
        ("chunked-prefill", {"watermark": 1.5}, "at least 0 and below 1"),
        ("chunked-prefill", {"enable_prefix_caching": True}, "no block hashes"),
        ("chunked-prefill", {"bogus": 1}, "--bogus: there is no such option"),
        ("chunked-prefill", {"rate_scale": 0}, "--rate-scale 0"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(
    policy: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(PolicyChoiceError, match=said):
        run(policy, **options)
