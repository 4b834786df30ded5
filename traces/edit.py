"""Changing a trace: cutting, scaling, merging, spreading ties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traces.blocks import reblock
from traces.errors import TraceError
from traces.rows import tick_of
from traces.trace import BlockHashes, Trace


def rebased(trace: Trace) -> Trace:
    """The same trace with its first arrival at 0."""
    if not len(trace) or trace.arrival_s[0] == 0:
        return trace
    return replace(trace, arrival_s=trace.arrival_s - trace.arrival_s[0])


def window(trace: Trace, start_s: float, end_s: float) -> Trace:
    """The requests that arrive from `start_s` to before `end_s`, first at 0.

    Raises:
        TraceError: an empty window.
    """
    first, last = np.searchsorted(trace.arrival_s, [start_s, end_s])
    if first >= last:
        raise TraceError(
            f"{trace.name}: no request arrives from {start_s:g} s to before {end_s:g} s; "
            f"it spans 0 to {trace.span_s:g} s."
        )
    return rebased(trace.take(np.arange(first, last))).noted(f"cut to {start_s:g}–{end_s:g} s")


def sample(trace: Trace, share: float, seed: int) -> Trace:
    """A random share of the requests, each kept on its own, at their own times; first at 0.

    Raises:
        TraceError: a share outside 0 to 1, or one so small that nothing is left.
    """
    if not 0 < share <= 1:
        raise TraceError(f"a sample must be a share above 0 and at most 1, not {share:g}")
    kept = np.flatnonzero(np.random.default_rng(seed).random(len(trace)) < share)
    if not len(kept):
        raise TraceError(f"{trace.name}: a sample of {share:g} leaves no request. Take more.")
    return rebased(trace.take(kept)).noted(f"random sample of {share:g}, seed {seed}")


def scale_lengths(trace: Trace, prompt: float = 1.0, output: float = 1.0) -> Trace:
    """Prompts and outputs times a factor, rounded; a length above 0 stays at least 1.

    Hash ids cannot follow a scaled prompt and are left out, which is noted.

    Raises:
        TraceError: a factor that is not positive and finite.
    """
    for name, factor in (("prompt", prompt), ("output", output)):
        if not (factor > 0 and np.isfinite(factor)):
            raise TraceError(f"{name} scale must be a positive number, not {factor:g}")
    changed = replace(
        trace,
        prompt_tokens=_scaled(trace.prompt_tokens, prompt),
        output_tokens=_scaled(trace.output_tokens, output),
        hashes=trace.hashes if prompt == 1 else None,
    ).noted(f"prompts × {prompt:g}, outputs × {output:g}")
    lost = trace.hashes is not None and changed.hashes is None
    return changed.noted("hash ids left out: they do not fit scaled prompts") if lost else changed


def _scaled(lengths: NDArray[np.int64], factor: float) -> NDArray[np.int64]:
    return np.where(lengths > 0, np.maximum(np.rint(lengths * factor), 1), 0).astype(np.int64)


def spread(trace: Trace, seed: int) -> Trace:
    """Requests that share a timestamp, spread uniformly within the clock's tick (seeded).

    Their order in the file is kept among those of one timestamp. The first arrival stays 0.
    """
    tick = tick_of(trace.arrival_s)
    if tick is None:
        return trace.noted("--spread-ties: the times show no tick to spread within, nothing done")
    rng = np.random.default_rng(seed)
    arrival = np.sort(trace.arrival_s + rng.uniform(0, tick, len(trace)))
    arrival -= arrival[0]
    return replace(trace, arrival_s=arrival).noted(f"ties spread within {tick:g} s, seed {seed}")


def merge(parts: Sequence[Trace], names: Sequence[str] | None = None) -> Trace:
    """Traces laid over one another, all starting at 0; each request keeps where it came from.

    Tenants are those of the parts, or `names` (the parts' names) where a part has none. Hash ids
    of different parts are kept apart. A priority that a part does not have is 0.

    Raises:
        TraceError: nothing to merge.
    """
    if not parts:
        raise TraceError("nothing to merge: give at least one trace")
    names = [part.name for part in parts] if names is None else names
    arrival = np.concatenate([part.arrival_s for part in parts])
    order = np.argsort(arrival, kind="stable")
    tenant = [
        np.full(len(p), name, object) if p.tenant is None else p.tenant
        for p, name in zip(parts, names, strict=True)
    ]
    priority = None
    if any(part.priority is not None for part in parts):
        zero = [np.zeros(len(p), np.int64) if p.priority is None else p.priority for p in parts]
        priority = np.concatenate(zero)
    hashes, notes = _merged_hashes(parts)
    return Trace(
        arrival[order],
        np.concatenate([part.prompt_tokens for part in parts])[order],
        np.concatenate([part.output_tokens for part in parts])[order],
        None if priority is None else priority[order],
        None if hashes is None else hashes.take(order),
        np.concatenate(tenant)[order],
        "+".join(names),
        (f"merged from {', '.join(names)}", *notes),
    )


def _merged_hashes(parts: Sequence[Trace]) -> tuple[BlockHashes | None, tuple[str, ...]]:
    """All parts' hash ids in the smallest of their block sizes, made distinct between parts."""
    have = [part for part in parts if part.hashes is not None]
    if not have:
        return None, ()
    if len(have) < len(parts):
        without = next(part.name for part in parts if part.hashes is None)
        return None, (f"hash ids left out: {without} has none",)
    size = min(part.hashes.block_tokens for part in parts if part.hashes is not None)
    ids, counts, used = [], [], 0
    for part in parts:
        hashes = reblock(part, size).hashes
        assert hashes is not None
        values, inverse = np.unique(hashes.ids, return_inverse=True)
        ids.append(inverse + used)
        counts.append(np.diff(hashes.offsets))
        used += len(values)
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return BlockHashes(np.concatenate(ids), offsets, size), ()
