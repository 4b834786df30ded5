"""Holds a recording against this project's own decisions and names the first difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from policies.conform import sglang, vllm
from policies.conform.recording import Recording, VllmRecording


class Difference(NamedTuple):
    """Where a replay first departs from its recording."""

    step: int
    field: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        recorded, replayed = self.recorded, self.replayed
        where = f"step {self.step} {self.field}"
        if isinstance(recorded, dict) and isinstance(replayed, dict):
            equal = recorded.items() & replayed.items()
            if len(equal) == len(recorded) == len(replayed):
                where, recorded, replayed = f"{where} order", list(recorded), list(replayed)
            elif equal:
                recorded = {k: v for k, v in recorded.items() if (k, v) not in equal}
                replayed = {k: v for k, v in replayed.items() if (k, v) not in equal}
                where = f"{where} ({len(equal)} entries equal)"
        return f"{where}: recorded {recorded}, here {replayed}"


def replay(recording: Recording) -> Iterator[dict[str, Any]]:
    """What this project decides on a recording's requests, step by step."""
    if isinstance(recording, VllmRecording):
        return vllm.replay(recording)
    return sglang.replay(recording)


def compare(recording: Recording) -> Difference | None:
    """The first difference between a recording and this project's own decisions, or None."""
    ours = replay(recording)
    finished: set[int] = set()
    last = 0
    for iteration in recording.iterations:
        recorded = iteration.model_dump(exclude_none=True)
        last = iteration.step
        replayed = next(ours, None)
        if replayed is None:
            return Difference(last, "step", last, None)
        for field in dict.fromkeys((*replayed, *recorded)):
            theirs, mine = recorded.get(field), replayed.get(field)
            if not _same(theirs, mine):
                return Difference(last, field, theirs, mine)
        finished.update(replayed["finished"])
    unfinished = [r.idx for r in recording.requests if r.idx not in finished]
    if unfinished != recording.unfinished:
        return Difference(last, "unfinished", recording.unfinished, unfinished)
    return None


def _same(a: object, b: object) -> bool:
    """Equal, the order of a dict's entries included."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a.items()) == list(b.items())
    return a == b
