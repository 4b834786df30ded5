"""A run as a Chrome trace, to open in Perfetto (https://ui.perfetto.dev) or chrome://tracing.

A track a request, a track a replica's steps, and counters for requests and KV blocks. The format is
Google's Trace Event Format: complete events (`X`), counters (`C`) and names (`M`), times in µs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.levels import span
from lengthwise.spent import Phase, phases
from lengthwise.stays import Replica, Stay, replica
from serving.record import Record

REQUESTS_PID = 1
"""The process under which the tracks of requests stand; replica n's is n + 2."""

MOST_BYTES = 100_000_000
"""Viewers become slow above this."""

Event = dict[str, Any]


class TimelineTooLargeError(ValueError):
    """More than viewers can show; the message names a window that fits."""


def write_timeline(
    record: Record,
    path: Path,
    window: tuple[float, float] | None = None,
    most_bytes: int = MOST_BYTES,
) -> tuple[float, float]:
    """Write the run, or a window of it, as one JSON file.

    Args:
        record: the run.
        path: the file to write to.
        window: from and to, in seconds; the whole run if left out, or as much of it from its
            beginning as `most_bytes` hold.
        most_bytes: the size that the file must not exceed.

    Returns:
        The window that was written, in seconds.

    Raises:
        TimelineTooLargeError: a window was given whose file would be larger than `most_bytes`.
        ValueError: a window that ends before it begins.
    """
    low, high = window or span({"": record})
    if not low < high:
        raise ValueError(f"--from {low:g} --to {high:g}: the window must end after it begins")
    if window is None:
        high = min(high, _fits(record, most_bytes))
    parts = [replica(record, int(n)) for n in sorted(set(record.steps["replica"]))]
    while True:
        try:
            _write(timeline_events(record, parts, (low, high)), path, most_bytes)
            return low, high
        except TimelineTooLargeError as error:
            if window is not None:
                raise TimelineTooLargeError(
                    f"--from {low:g} --to {high:g}: the file would exceed "
                    f"{most_bytes / 1e6:.0f} MB; choose a shorter window"
                ) from error
            high = low + (high - low) / 2


def _fits(record: Record, most_bytes: int) -> float:
    """About until when (s) a file of `most_bytes` reaches: a step takes some 300 bytes."""
    ends = np.sort(record.steps["end_s"].to_numpy())
    most = most_bytes // 300
    return float(ends[most]) if most < len(ends) else math.inf


def _write(events: Iterator[Event], path: Path, most_bytes: int) -> None:
    """Write events as they come; give up as soon as they are too many."""
    left = most_bytes - 100
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for i, event in enumerate(events):
            line = json.dumps(event, separators=(",", ":"), allow_nan=False)
            left -= file.write(line if i == 0 else ",\n" + line)
            if left < 0:
                raise TimelineTooLargeError
        file.write("\n]}\n")


def timeline_events(
    record: Record, replicas: list[Replica], window: tuple[float, float]
) -> Iterator[Event]:
    """The events of a window, those of one track in order of time.

    Args:
        record: the run.
        replicas: its replicas, in order.
        window: from and to, in seconds.
    """
    arrival = dict(zip(record.requests["request"], record.requests["arrival_s"], strict=True))
    yield _name("process_name", REQUESTS_PID, 0, "requests")
    for number, engine in enumerate(replicas):
        pid = REQUESTS_PID + 1 + number
        yield _name("process_name", pid, 0, f"replica {number}")
        yield _name("thread_name", pid, 1, "steps")
        yield from _steps(engine, pid, window)
        for request, stays in engine.by_request().items():
            yield from _request(request, stays, float(arrival[request]), engine, window)


def _steps(engine: Replica, pid: int, window: tuple[float, float]) -> Iterator[Event]:
    """A slice a step with its composition, and counters where they change."""
    steps = engine.steps
    inside = steps[(engine.end > window[0]) & (engine.start < window[1])]
    columns = ["start_s", "end_s", "step", "prefill_tokens", "decode_tokens"]
    columns += ["prefill_slots", "decode_slots", "waiting", "running", "kv_blocks_used"]
    shown: tuple[Any, ...] = ()
    for row in zip(*(inside[name].tolist() for name in columns), strict=True):
        begin, finish, step, prefill, decode, prefill_slots, decode_slots, *counts = row
        composition = {"prefill": prefill, "decode": decode}
        padding = prefill_slots + decode_slots - prefill - decode
        if padding:
            composition["padding"] = padding
        kind = "mixed" if prefill and decode else "prefill" if prefill else "decode"
        yield _slice(kind, pid, 1, Phase(kind, begin, finish), {"step": step, **composition})
        if tuple(counts) != shown:
            waiting, running, blocks = shown = tuple(counts)
            yield _counter("requests", pid, begin, {"waiting": waiting, "running": running})
            yield _counter("KV blocks", pid, begin, {"in use": blocks})


def _request(
    request: int, stays: list[Stay], arrival: float, engine: Replica, window: tuple[float, float]
) -> Iterator[Event]:
    """The track of one request: its phases, and inside its prefill the chunks."""
    life = phases(stays, arrival, engine)
    if not life or life[-1].end <= window[0] or life[0].begin >= window[1]:
        return
    track = request + 1
    yield _name("thread_name", REQUESTS_PID, track, f"request {request}")
    start, end = engine.start, engine.end
    chunks = [chunk for stay in stays for chunk in stay.chunks]
    for phase in life:
        if phase.end <= window[0] or phase.begin >= window[1]:
            continue
        yield _slice(phase.what, REQUESTS_PID, track, phase, {})
        if phase.what == "prefill":
            for step, tokens in chunks:
                if phase.begin <= start[step] and end[step] <= phase.end and len(chunks) > 1:
                    piece = Phase("chunk", float(start[step]), float(end[step]))
                    yield _slice("chunk", REQUESTS_PID, track, piece, {"tokens": tokens})


def _us(seconds: float) -> float:
    """Microseconds, to the nanosecond."""
    return round(seconds * 1e6, 3)


def _slice(name: str, pid: int, tid: int, phase: Phase, args: Event) -> Event:
    begin = _us(phase.begin)
    event = {"name": name, "ph": "X", "pid": pid, "tid": tid, "ts": begin}
    return event | {"dur": round(_us(phase.end) - begin, 3)} | ({"args": args} if args else {})


def _counter(name: str, pid: int, seconds: float, values: Event) -> Event:
    return {"name": name, "ph": "C", "pid": pid, "tid": 0, "ts": _us(seconds), "args": values}


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
