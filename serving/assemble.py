"""Turns what the engines wrote down into the tables of a record, and what its figures need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.gaps import RANKS, TokenGaps
from serving.keep import InMemory, Keep, Kept
from serving.metrics import Folded
from serving.parquet import Arrays
from serving.recorder import ADMIT, FINISH, FIRST, PREEMPT, Columns, Recorder
from serving.request import Request
from serving.tables import REQUESTS
from serving.totals import StepTotals
from traces.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

Estimate = Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float64]]
"""Figures a step from the step table's columns, shape [steps]: FLOPs, or bytes moved."""

Estimates = Estimate | Sequence[Estimate | None] | None
"""One for all replicas, one a replica, or none, where there is no model."""


class Assembled(NamedTuple):
    """What a run gave."""

    requests: Arrays
    steps: Kept
    events: Kept
    folded: Folded


class Assembly:
    """Takes lots of steps and events as they come; of each it keeps what requests and figures need.

    What stays in memory: the request table, and of each decode step and of each request's first
    tokens the gap between tokens. The lots themselves go where they are kept.
    """

    def __init__(
        self,
        trace: Trace,
        replicas: int,
        keep: Keep,
        flops: Estimates = None,
        bytes_moved: Estimates = None,
    ) -> None:
        """Begin with nothing run.

        Args:
            trace: what was asked for; its rows are the requests.
            replicas: how many engines.
            keep: where steps and events go.
            flops: useful arithmetic of the model.
            bytes_moved: weights and KV moved.
        """
        self._keep = keep
        self._estimates = [
            made if isinstance(made, Sequence) else [made] * replicas
            for made in (flops, bytes_moved)
        ]
        self._requests = _blank_requests(trace)
        self._totals = StepTotals()
        self._gaps = [TokenGaps() for _ in range(replicas)]
        self._before = [0] * replicas  # steps of each that have come
        self._hit_tokens = 0

    def take(
        self,
        replica: int,
        steps: Columns,
        events: NDArray[np.int64],
        waits: Mapping[int, float],
    ) -> None:
        """The next steps of a replica, as a `serving.recorder.Sink` takes them."""
        count = len(steps["step"])
        flops, moved = (made[replica] for made in self._estimates)
        unknown = np.full(count, np.nan)
        steps = {
            **steps,
            "replica": np.full(count, replica),
            "flops": unknown if flops is None else flops(steps),
            "bytes": unknown if moved is None else moved(steps),
        }
        place = events[:, 0] - self._before[replica]
        self._hit_tokens += _fill_requests(self._requests, steps, events, place, replica)
        for index, seconds in waits.items():
            self._requests["grouping_wait_s"][index] = seconds
        rank = RANKS[events[:, 2]]
        told = (rank >= 0) & (self._requests["output_tokens"][events[:, 1]] > 0)
        self._gaps[replica].add(
            steps["end_s"],
            steps["decode_rows"] > 0,
            events[told, 1],
            events[told, 0],
            rank[told],
        )
        self._totals.add(steps)
        self._before[replica] += count
        self._keep.take(replica, steps, events)

    def finish(self, refused: Sequence[tuple[Request, str]]) -> Assembled:
        """All has come: the tables.

        Args:
            refused: requests, each with the reason.
        """
        requests = self._requests
        for request, reason in refused:
            requests["status"][request.index] = "refused"
            requests["reason"][request.index] = reason
        _derive(requests)
        admitted = requests["prompt_tokens"][requests["replica"] >= 0]
        return Assembled(
            Arrays({name: requests[name] for name in REQUESTS}, REQUESTS),
            *self._keep.tables(),
            Folded(
                self._totals,
                TokenGaps.distribution(self._gaps),
                self._hit_tokens,
                int(admitted.sum()),
            ),
        )


def assemble(
    trace: Trace,
    recorders: Sequence[Recorder],
    flops: Estimates = None,
    bytes_moved: Estimates = None,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The request, step and event tables of a run whose recorders kept all, one a replica."""
    assembly = Assembly(trace, len(recorders), InMemory(len(recorders)), flops, bytes_moved)
    for replica, recorder in enumerate(recorders):
        columns, events = recorder.step_columns(), recorder.event_rows()
        assembly.take(replica, columns, events, recorder.waits)
    made = assembly.finish([entry for recorder in recorders for entry in recorder.refused])
    request_table, step_table, event_table = (t.read() for t in made[:3] if t is not None)
    return request_table, step_table, event_table


def _blank_requests(trace: Trace) -> dict[str, NDArray[Any]]:
    count = len(trace)
    times = ("scheduled_s", "first_token_s", "finished_s", "grouping_wait_s")
    return {
        "request": np.arange(count),
        "arrival_s": trace.arrival_s.copy(),
        "prompt_tokens": trace.prompt_tokens.copy(),
        "output_tokens": trace.output_tokens.copy(),
        **{name: np.full(count, np.nan) for name in times},
        "preemptions": np.zeros(count, np.int64),
        "status": np.full(count, "unfinished", object),
        "reason": np.full(count, None, object),
        "replica": np.full(count, -1, np.int64),
    }


def _fill_requests(
    requests: dict[str, NDArray[Any]],
    steps: Columns,
    events: NDArray[np.int64],
    place: NDArray[np.int64],
    replica: int,
) -> int:
    """What these steps did to requests: times are those of the steps named by their events.

    Args:
        requests: columns to fill.
        steps: columns, shape [steps] each.
        events: of these steps, shape [events, 5].
        place: of each event's step, shape [events].
        replica: whose steps they are.

    Returns:
        Tokens found in the prefix cache by requests that are admitted for the first time.
    """
    kind, hits = events[:, 2], 0
    # of several events of a request the first stands
    for column, wanted, times in (
        ("scheduled_s", ADMIT, steps["start_s"]),
        ("first_token_s", FIRST, steps["end_s"]),
        ("finished_s", FINISH, steps["end_s"]),
    ):
        chosen = np.flatnonzero(kind == wanted)
        who, at = np.unique(events[chosen, 1], return_index=True)
        new = np.isnan(requests[column][who])
        who, at = who[new], chosen[at[new]]
        requests[column][who] = times[place[at]]
        if wanted == ADMIT:
            requests["replica"][who] = replica
            waited = requests["grouping_wait_s"]
            waited[who] = np.where(np.isnan(waited[who]), 0.0, waited[who])
            hits = int(events[at, 3].sum())
        if wanted == FINISH:
            requests["status"][who] = "finished"
    np.add.at(requests["preemptions"], events[kind == PREEMPT, 1], 1)
    return hits


def _derive(requests: dict[str, NDArray[Any]]) -> None:
    """The latencies of the design's section 1, s; NaN where undefined."""
    arrival, first = requests["arrival_s"], requests["first_token_s"]
    finished, outputs = requests["finished_s"], requests["output_tokens"]
    requests["ttft_s"] = first - arrival
    requests["e2e_s"] = finished - arrival
    requests["queue_s"] = requests["scheduled_s"] - arrival
    gaps = np.where(outputs > 1, outputs - 1, np.nan)
    requests["tpot_s"] = (finished - first) / gaps
