"""When each request got its tokens, from step ends and events, without a line per token.

A request emits at the end of the step of its `first` event and of every later step with decode
rows of its replica until its `finish` or `preempt`, except where a `skip` says so. Most gaps
between its tokens are therefore the time from one decode step's end to the next one's, shared by
all rows that go on; only the gap that follows a `first`, a `skip` or a preemption is a request's
own. Work is O(steps + events), never O(tokens), and memory two numbers a decode step.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from serving.distribution import Distribution
from serving.tables import KINDS

if TYPE_CHECKING:
    import pandas as pd

IntArray = NDArray[np.int64]

# In one step a request's events happened in this order.
_ORDER = {"first": 0, "skip": 1, "preempt": 2, "finish": 3}
_FIRST, _SKIP, _PREEMPT, _FINISH = range(len(_ORDER))
RANKS = np.array([_ORDER.get(kind, -1) for kind in KINDS], np.int64)
"""Place in that order by kind of event as a number; -1 for kinds that change no gap."""


@dataclass(frozen=True, eq=False)
class StepIndex:
    """Steps in the order of their replicas, and where each event's step stands in it."""

    order: IntArray
    """Rows of the step table, replica by replica, rising in step; shape [steps]."""
    event: IntArray
    """Each event's place in `order`, shape [events]."""
    stop: IntArray
    """Each event's end of its replica's places in `order`, shape [events]."""

    @classmethod
    def of(cls, requests: pd.DataFrame, steps: pd.DataFrame, events: pd.DataFrame) -> StepIndex:
        """Find the step of each event on the replica of its request.

        Raises:
            ValueError: an event of a request or a step that its table does not have.
        """
        replica = steps["replica"].to_numpy(np.int64)
        step = steps["step"].to_numpy(np.int64)
        order = np.lexsort((step, replica)).astype(np.int64)
        replica, step = replica[order], step[order]
        owner = _owners(requests, events)
        width = int(step.max()) + 1 if len(step) else 1
        wanted = owner * width + events["step"].to_numpy(np.int64)
        keys = replica * width + step
        place = np.searchsorted(keys, wanted)
        found = place < len(keys)
        found[found] = keys[place[found]] == wanted[found]
        if not found.all():
            bad = events.iloc[int(np.argmin(found))]
            raise ValueError(
                f"events: step {bad['step']} of request {bad['request']} is not in steps"
            )
        return cls(order, place, np.searchsorted(replica, owner, side="right"))


def _owners(requests: pd.DataFrame, events: pd.DataFrame) -> IntArray:
    """The replica of each event, which is that of its request, shape [events]."""
    ids = requests["request"].to_numpy(np.int64)
    wanted = events["request"].to_numpy(np.int64)
    by_id = np.argsort(ids, kind="stable")
    place = np.searchsorted(ids, wanted, sorter=by_id)
    found = place < len(ids)
    row = by_id[place[found]]
    found[found] = ids[row] == wanted[found]
    if not found.all():
        raise ValueError(f"events: request {wanted[np.argmin(found)]} is not in requests")
    return requests["replica"].to_numpy(np.int64)[row]


class TokenGaps:
    """The gaps between the output tokens of finished requests, from steps as they come.

    A *mark* is an event that begins or ends a run of tokens: a column of request, place of its
    step, rank, and decode steps before its step and up to it. Marks wait until their request is
    finished; then its gaps are counted and its marks are gone.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._ends = array("d")  # of decode steps, s
        self._change = array("i", [0])  # by so many more rows share the gap before a decode step
        self._own: list[NDArray[np.float64]] = []  # gaps that one request alone has, s
        self._marks = np.zeros((5, 0), np.int64)
        self._at = np.zeros(0)  # end of each mark's step, s

    def add(
        self,
        end_s: NDArray[np.float64],
        decoding: NDArray[np.bool_],
        request: IntArray,
        place: IntArray,
        rank: IntArray,
    ) -> None:
        """Take in the next steps of a replica and their events.

        Args:
            end_s: of each step, shape [steps].
            decoding: whether it has decode rows, shape [steps].
            request: of each event that `RANKS` gives a rank, shape [events]; not of requests
                without output tokens.
            place: of the event's step among all steps so far.
            rank: as `RANKS` has it.
        """
        before = len(self._ends) + np.concatenate([[0], np.cumsum(decoding)])
        self._ends.frombytes(end_s[decoding].tobytes())
        self._change.frombytes(bytes(int(decoding.sum()) * self._change.itemsize))
        here = place - self._steps
        self._steps += len(end_s)
        new = np.stack([request, place, rank, before[here], before[here + 1]])
        marks = np.concatenate([self._marks, new], axis=1)
        at = np.concatenate([self._at, end_s[here]])
        order = np.lexsort((marks[2], marks[1], marks[0]))
        marks, at = marks[:, order], at[order]
        begins = np.append(True, marks[0, 1:] != marks[0, :-1])[: len(at)]  # a request's first
        first = np.flatnonzero(begins)
        ended = np.zeros(0, np.bool_)
        if len(first):
            finished = np.logical_or.reduceat(marks[2] == _FINISH, first)
            ended = np.repeat(finished, np.diff(first, append=len(at)))
        # Two steps deep one may be preempted while its last token is on its way; a preemption
        # behind no token says nothing.
        wait = ~ended & ~(begins & (marks[2] == _PREEMPT))
        self._marks, self._at = marks[:, wait], at[wait]
        self._count(marks[:, ended], at[ended])

    def _count(self, marks: IntArray, at: NDArray[np.float64]) -> None:
        """Count the gaps of finished requests, given all their marks in order."""
        request, _, rank, before, after = marks
        # From a `first` or `skip` a request decodes up to its next mark, which there always is:
        # over it if that is its finish.
        spans = np.flatnonzero(rank <= _SKIP)
        lo = after[spans]  # first decode step, and behind the last one
        hi = np.maximum(
            np.where(rank[spans + 1] == _FINISH, after[spans + 1], before[spans + 1]), lo
        )
        some = hi > lo
        lo, hi = lo[some], hi[some]
        change = np.frombuffer(self._change, np.int32)
        np.add.at(change, lo + 1, 1)  # decode steps lo + 1 to hi - 1 each follow the one before
        np.subtract.at(change, hi, 1)

        # A request's own gaps: to a span's own token, and to the first decode step of a span.
        ends = np.frombuffer(self._ends)
        token = np.zeros((len(spans), 2))
        token[:, 0] = at[spans]
        latest = token.copy()  # the last token known after each of the two
        token[some, 1], latest[some, 1] = ends[lo], ends[hi - 1]
        emits = np.stack([rank[spans] == _FIRST, some], axis=1).ravel()
        who = np.repeat(request[spans], 2)[emits]
        gaps = token.ravel()[emits][1:] - latest.ravel()[emits][:-1]
        self._own.append(gaps[who[1:] == who[:-1]])

    @staticmethod
    def distribution(parts: Sequence[TokenGaps]) -> Distribution:
        """All gaps of all replicas, s."""
        values, counts = [], []
        for part in parts:
            rows = np.cumsum(np.frombuffer(part._change, np.int32), dtype=np.int64)[:-1]
            values += [np.diff(np.frombuffer(part._ends), prepend=0.0)[rows > 0], *part._own]
            counts += [rows[rows > 0], *(np.ones(len(gaps), np.int64) for gaps in part._own)]
        every = np.concatenate(values), np.concatenate(counts)
        del values, counts
        return Distribution.of(*every)


def token_gaps(requests: pd.DataFrame, steps: pd.DataFrame, events: pd.DataFrame) -> Distribution:
    """Every gap between consecutive output tokens of a finished request, pooled, in seconds.

    After a preemption the gap reaches across it, from the last token before it to the next one.

    Raises:
        ValueError: an event of a request or a step that its table does not have.
    """
    done = requests[requests["status"] == "finished"]
    if len(done) < len(requests):
        events = events[np.isin(events["request"].to_numpy(), done["request"].to_numpy())]
    index = StepIndex.of(done, steps, events)
    silent = done["request"].to_numpy()[done["output_tokens"].to_numpy() == 0]
    kind = events["kind"].cat
    rank = np.array([_ORDER.get(str(k), -1) for k in kind.categories], np.int64)[kind.codes]
    request = events["request"].to_numpy(np.int64)
    keep = (rank >= 0) & ~np.isin(request, silent)
    gaps = TokenGaps()  # one for all replicas: no request goes from one to the next
    gaps.add(
        steps["end_s"].to_numpy()[index.order],
        steps["decode_rows"].to_numpy()[index.order] > 0,
        request[keep],
        index.event[keep],
        rank[keep],
    )
    return TokenGaps.distribution([gaps])
