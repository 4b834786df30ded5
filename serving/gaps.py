"""When each request got its tokens, from step ends and events, without a line per token.

A request emits at the end of the step of its `first` event and of every later step with decode
rows of its replica until its `finish` or `preempt`, except where a `skip` says so. Most gaps
between its tokens are therefore the time from one decode step's end to the next one's, shared by
all rows that go on; only the gap that follows a `first`, a `skip` or a preemption is a request's
own. Work and memory are O(steps + events), never O(tokens).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving.distribution import Distribution

IntArray = NDArray[np.int64]

# In one step a request's events happened in this order.
_ORDER = {"first": 0, "skip": 1, "preempt": 2, "finish": 3}


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


@dataclass(frozen=True, eq=False)
class Spans:
    """What each request emitted between one event of it and the next, a row a span.

    A span begins with a `first` or `skip` event; rows are sorted by request, then time. Tokens
    come at the span's own step if it began with a `first`, and at the decode steps lo to hi - 1.
    """

    request: IntArray
    first: NDArray[np.bool_]
    """Whether the span's own step emitted a token."""
    at: IntArray
    """Place of the span's own step in `StepIndex.order`."""
    lo: IntArray
    """First decode step of the span, as an index into `decode`."""
    hi: IntArray
    """Behind the last decode step of the span."""
    decode: IntArray
    """Places in `StepIndex.order` of the steps with decode rows, shape [decode steps]."""


def spans(
    requests: pd.DataFrame, steps: pd.DataFrame, events: pd.DataFrame, index: StepIndex
) -> Spans:
    """The spans in which requests emitted tokens; requests without output tokens have none."""
    decodes = steps["decode_rows"].to_numpy()[index.order] > 0
    before = np.zeros(len(decodes) + 1, np.int64)  # decode steps before a place
    np.cumsum(decodes, out=before[1:])

    kind = events["kind"].cat
    rank = np.array([_ORDER.get(str(k), -1) for k in kind.categories], np.int64)[kind.codes]
    silent = requests["request"].to_numpy()[requests["output_tokens"].to_numpy() == 0]
    keep = rank >= 0
    if len(silent):
        keep &= ~np.isin(events["request"].to_numpy(), silent)
    request = events["request"].to_numpy(np.int64)[keep]
    place, stop, rank = index.event[keep], index.stop[keep], rank[keep]
    order = np.lexsort((rank, place, request))
    request, place, stop, rank = request[order], place[order], stop[order], rank[order]

    # A span reaches to the request's next event: over it if that is its finish, up to it
    # otherwise, and to the replica's last step if there is no next one.
    end = stop.copy()
    if len(request):
        follows = request[1:] == request[:-1]
        reach = place[1:] + (rank[1:] == _ORDER["finish"])
        end[:-1] = np.where(follows, reach, end[:-1])
    decoding = rank <= _ORDER["skip"]
    place, end = place[decoding], end[decoding]
    lo = before[place + 1]
    return Spans(
        request=request[decoding],
        first=rank[decoding] == _ORDER["first"],
        at=place,
        lo=lo,
        hi=np.maximum(before[np.maximum(end, place + 1)], lo),
        decode=np.flatnonzero(decodes),
    )


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
    s = spans(done, steps, events, index)
    ends = steps["end_s"].to_numpy()[index.order]
    decode_ends = ends[s.decode]

    # Shared gaps: decode steps lo + 1 to hi - 1 of a span each follow the decode step before.
    some = s.hi > s.lo
    size = len(decode_ends) + 1
    begin, end = (
        np.bincount(s.lo[some] + 1, minlength=size),
        np.bincount(s.hi[some], minlength=size),
    )
    rows = np.cumsum(begin - end)[:-1]
    shared = np.diff(decode_ends, prepend=0.0)

    # A request's own gaps: to a span's own token, and to the first decode step of a span.
    own = np.full((len(s.request), 2), -1, np.int64)  # places of those tokens, -1 for none
    own[s.first, 0] = s.at[s.first]
    last = own.copy()  # the last token known after each of the two
    own[some, 1] = s.decode[s.lo[some]]
    last[some, 1] = s.decode[s.hi[some] - 1]
    emits = own.ravel() >= 0
    token, latest = own.ravel()[emits], last.ravel()[emits]
    who = np.repeat(s.request, 2)[emits]
    same = who[1:] == who[:-1]
    gaps = (ends[token[1:]] - ends[latest[:-1]])[same]
    return Distribution.of(
        np.concatenate([shared, gaps]), np.concatenate([rows, np.ones(len(gaps), np.int64)])
    )
