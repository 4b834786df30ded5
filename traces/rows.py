"""From parsed chunks to a Trace: ranges checked, rows sorted, clock rebased, and all of it said."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.blocks import block_hashes, fits_blocks
from traces.errors import TraceError
from traces.layout import Chunk, Layout, Role
from traces.trace import BlockHashes, Trace
from traces.trouble import Trouble

MAX_TOKENS = 10**9
"""More tokens in one request than this is a mistake in the file."""
MAX_SECONDS = 10**11
"""More seconds than this since 1970 are not seconds (milliseconds pass it)."""
EPOCH = 10**8
"""A first arrival past this many seconds is a date, not a time since a start."""


TOKENS: tuple[Role, Role] = ("prompt", "output")


class Rows:
    """Gathers the chunks of one file."""

    def __init__(self, layout: Layout, trouble: Trouble) -> None:
        self.layout = layout
        self.trouble = trouble
        self._parts: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
        self._seen = 0

    def add(self, chunk: Chunk) -> None:
        """Check a chunk's rows and keep the good ones."""
        if self.layout.failed is not None:
            failed = self.layout.failed(chunk.values)
            if failed.any():
                self.trouble.left_out(self.layout.failed_means, int(failed.sum()))
                chunk = chunk.keep(~failed)
        chunk = self._checked(chunk)
        if not len(chunk.lines):
            return
        self._seen += len(chunk.lines)
        for role, column in chunk.values.items():
            if role != "status":
                self._parts[role].append(column)
        if chunk.ids is not None and chunk.ids_per_row is not None:
            self._parts["ids"].append(chunk.ids)
            self._parts["ids_per_row"].append(chunk.ids_per_row)

    def finish(self, name: str, notes: tuple[str, ...]) -> Trace:
        """The trace: arrivals in seconds, first at 0, sorted.

        Raises:
            TraceError: no usable row, or hash ids that fit no block size.
        """
        notes += self.trouble.notes()
        if not self._seen:
            raise TraceError(
                f"{self.trouble.source}: no usable request. "
                + (" ".join(notes) or "A trace needs at least one row below its header.")
            )
        arrival, clock_notes = _seconds(self._take("arrival"), self.layout.per_second)
        prompt = self._take("prompt")
        hashes, hash_notes = self._hashes(prompt)
        output = self._take("output")
        priority = self._take("priority") if "priority" in self._parts else None
        tenant = self._take("tenant") if "tenant" in self._parts else None
        if tenant is not None and not any(tenant):
            tenant = None
        trace = Trace(np.zeros(len(arrival)), prompt, output, priority, hashes, tenant, name)
        order, sort_notes = _order(arrival)
        if order is not None:
            trace, arrival = trace.take(order), arrival[order]
        said = notes + sort_notes + clock_notes + hash_notes + tie_notes(arrival)
        return replace(trace, arrival_s=arrival, notes=said)

    def _take(self, role: str) -> NDArray[Any]:
        """A whole column; its parts are let go."""
        parts = self._parts.pop(role)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _checked(self, chunk: Chunk) -> Chunk:
        """The chunk without the rows whose values cannot be, each reported."""
        values, per_second = chunk.values, self.layout.per_second
        arrival = values["arrival"]
        good = np.ones(len(chunk.lines), bool)
        rules: list[tuple[Role, NDArray[np.bool_], str, str]] = [
            ("arrival", arrival < 0, "is negative", "Give a time of 0 or later"),
            (
                "arrival",
                arrival > MAX_SECONDS * per_second,
                "is too late for this column's unit",
                "Convert the column to the unit this format has",
            ),
            ("prompt", values["prompt"] < 1, "is below 1", "Give a prompt of at least 1 token"),
            ("output", values["output"] < 0, "is negative", "Give 0 or more tokens"),
        ]
        if arrival.dtype.kind == "f":
            finite = ~np.isfinite(arrival)
            rules.insert(0, ("arrival", finite, "is not a finite number", "Give a number"))
        for role in TOKENS:
            huge = values[role] > MAX_TOKENS
            rules.append((role, huge, "is over 10^9 tokens", "Give a number of tokens"))
        size = values.get("block_tokens", self.layout.block_tokens)
        if chunk.ids_per_row is not None and size is not None:
            values = {**values, "hash_ids": chunk.ids_per_row}
            wrong = ~fits_blocks(chunk.ids_per_row, values["prompt"], np.maximum(size, 1))
            fix = "Give one id a block of the prompt"
            rules.append(("hash_ids", wrong, "ids do not fit the prompt's length", fix))
        for role, wrong, problem, fix in rules:
            for row in np.flatnonzero(wrong & good):
                column = self.layout.named(role)
                self.trouble.bad(int(chunk.lines[row]), column, values[role][row], problem, fix)
            good &= ~wrong
        return chunk if good.all() else chunk.keep(good)

    def _hashes(self, prompt: NDArray[np.int64]) -> tuple[BlockHashes | None, tuple[str, ...]]:
        """The hash ids, with their block size checked against the prompts."""
        if "ids" not in self._parts:
            return None, ()
        ids, per_row = self._take("ids"), self._take("ids_per_row")
        given = self._take("block_tokens") if "block_tokens" in self._parts else None
        if not len(ids):
            return None, ("no request has hash ids",)
        size = self.layout.block_tokens if given is None else given
        return block_hashes(ids, per_row, prompt, size, self.trouble.source)


def _seconds(arrival: NDArray[Any], per_second: int) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Ticks of a clock as seconds after the first; whole ticks are subtracted before division."""
    first = arrival.min()
    # Subtract in whole ticks: a float of seconds since 1970 holds only about 0.2 µs.
    ticks = arrival - first if first else arrival
    seconds = ticks / per_second if per_second != 1 else ticks.astype(np.float64, copy=False)
    if not first:
        return seconds, ()
    start = float(first) / per_second
    if start < EPOCH:
        return seconds, (f"arrivals moved by {start:g} s so that the first is at 0",)
    date = datetime.fromtimestamp(start, UTC) if start < 253402300800 else None
    when = f"{date:%Y-%m-%d %H:%M:%S} UTC" if date else f"{start:g} s"
    return seconds, (f"clock rebased: {when} is 0",)


def _order(arrival: NDArray[np.float64]) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """The order by arrival (equal times stay as they came), or None where it is so already."""
    if not np.any(arrival[1:] < arrival[:-1]):
        return None, ()
    order = np.argsort(arrival, kind="stable")
    moved = int(np.count_nonzero(order != np.arange(len(order))))
    return order, (
        f"rows were not in order of arrival: sorted ({moved:,} of {len(order):,} moved)",
    )


def tick_of(arrival: NDArray[np.float64]) -> float | None:
    """The tick of a coarse clock, seconds: the least gap between distinct times, if any are shared.

    None without shared times, or where that gap is below a millisecond.
    """
    same = arrival[1:] == arrival[:-1]
    if not same.any() or same.all():
        return None
    distinct = arrival[np.concatenate([[True], ~same])]
    tick = round(float(np.diff(distinct).min()), 6)
    return tick if tick >= 1e-3 else None


def tie_notes(arrival: NDArray[np.float64]) -> tuple[str, ...]:
    """What to say of timestamps that several requests share."""
    same = arrival[1:] == arrival[:-1]
    if not same.any():
        return ()
    shared = np.zeros(len(arrival), bool)
    shared[1:] |= same
    shared[:-1] |= same
    tied, tick = int(shared.sum()), tick_of(arrival)
    if tick is None and tied < len(arrival) / 100:
        return ()
    whole = bool(np.all(arrival == np.rint(arrival)))
    seconds = " (times are whole seconds)" if whole and tick is not None else ""
    apart = "" if tick is None else f", distinct times are at least {tick:g} s apart{seconds}"
    spread = "" if tick is None else "; --spread-ties spreads them within that"
    return (f"{tied:,} of {len(arrival):,} requests share their arrival time{apart}{spread}",)
