"""How a run stands while it goes on: looked at from a thread of its own, a few times a second.

The loop itself knows nothing of it: everything is read from what the recorder holds so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from lengthwise.ticking import ticking
from serving.recorder import FINISH, ROW, Recorder

PERIOD = 0.25
"""Seconds between two looks."""


@dataclass(frozen=True)
class Glimpse:
    """How a run stands."""

    total: int
    """Requests in the trace."""
    done: int = 0
    """Of these, finished or refused."""
    seconds: float = 0.0
    """End of the last step, on the run's own clock."""
    steps: int = 0
    tokens: float = 0.0
    """Tokens a step, mean of the latest steps."""
    waiting: int = 0
    running: int = 0
    kv_blocks: int = 0
    """In use."""


Progress = Callable[[Glimpse], None]
"""Told a few times a second how a run stands, from another thread than the run's."""


class Looker:
    """Reads a recorder that another thread fills."""

    def __init__(self, recorder: Recorder, total: int) -> None:
        self._recorder = recorder
        self._last = Glimpse(total)
        self._packed = self._rows = 0  # how far it has read: times packed, rows since

    def look(self) -> Glimpse:
        """How the run stands now."""
        recorder, last = self._recorder, self._last
        with recorder.lock:  # each slice and each append is one operation of the interpreter
            if recorder.packed != self._packed:
                self._packed, self._rows = recorder.packed, 0
            whole = len(recorder.rows) // len(ROW) * len(ROW)
            rows = recorder.rows[self._rows : whole]
            kinds, done = recorder.events[2::5], recorder.finished + len(recorder.refused)
            ends, blocks, steps = recorder.ends[-1:], recorder.blocks[-1:], len(recorder)
        self._rows += len(rows)
        done += kinds.count(FINISH)
        if not (rows and ends):
            self._last = replace(last, done=done)
            return self._last
        columns = {name: rows[i :: len(ROW)] for i, name in enumerate(ROW)}
        counts, now = columns["steps"], {name: column[-1] for name, column in columns.items()}
        scheduled = zip(counts, columns["prefill_tokens"], columns["decode_tokens"], strict=True)
        self._last = Glimpse(
            total=last.total,
            done=done,
            seconds=ends[0],
            steps=steps,
            tokens=sum(n * (prompt + decode) for n, prompt, decode in scheduled) / sum(counts),
            waiting=now["waiting"],
            running=now["running"],
            kv_blocks=blocks[0] if now["counted"] else now["kv_blocks_used"],
        )
        return self._last


def together(parts: Sequence[Glimpse]) -> Glimpse:
    """How several replicas stand, as one."""
    if len(parts) == 1:
        return parts[0]
    return Glimpse(
        total=parts[0].total,
        done=sum(part.done for part in parts),
        seconds=max(part.seconds for part in parts),
        steps=sum(part.steps for part in parts),
        tokens=sum(part.tokens for part in parts) / len(parts),
        waiting=sum(part.waiting for part in parts),
        running=sum(part.running for part in parts),
        kv_blocks=sum(part.kv_blocks for part in parts),
    )


@contextmanager
def looked_at(
    recorders: Sequence[Recorder], total: int, progress: Progress | None
) -> Iterator[None]:
    """Tell `progress` how the run stands that fills `recorders`, and once more at its end.

    What `progress` raises ends the looking, and is raised at the end of the run.
    """
    if progress is None:
        yield
        return
    lookers = [Looker(recorder, total) for recorder in recorders]
    with ticking(lambda: progress(together([looker.look() for looker in lookers])), PERIOD):
        yield
