"""A step: what one forward pass computes, as laid out, and the sums that its cost depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from serving.request import Request

NEW: Final = tuple.__new__
"""Makes a named tuple in a third of the time that calling its class takes."""


class Packed(NamedTuple):
    """Only useful tokens, back to back, with `cu_seqlens` as their bounds."""


PACKED: Final = Packed()


class Padded(NamedTuple):
    """A rectangle: every prompt padded (on the left) to `width`, rows fixed until the drain."""

    width: int
    rows: tuple[Request, ...]


Layout = Packed | Padded


class Work(NamedTuple):
    """A prompt, or a chunk of one (after a preemption, of prompt + outputs)."""

    request: Request
    start: int
    """Tokens of it already computed, prefix hits included."""
    tokens: int
    """Tokens of it that this step computes."""
    samples: bool
    """Whether this step reaches the end of the known tokens and so emits a token."""


class Decodes(Protocol):
    """The decodes of a step, one token each, as a group; how many there are, the features say."""

    def members(self) -> Sequence[tuple[Request, int]]:
        """Those that emit a token, with each one's context (tokens computed before this step).

        O(rows), for the executor and for exact fallbacks. Valid from the plan of the step until
        the next plan.
        """

    def opening_run(self, steps: int) -> Sequence[int]:
        """KV blocks opened in each of the next `steps` steps of a run of equal ones."""


class Features(NamedTuple):
    """What a step costs is a function of these sums, never of the policy's name.

    A slot is one token position that is computed, useful or not. A pair is one query-key pair
    under the causal mask: a chunk of n tokens after a context of c has n·c + n(n+1)/2, a padded
    row of width w has w(w+1)/2, a decode over a context of c has c + 1.
    """

    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_slots: int = 0
    decode_slots: int = 0
    prefill_useful_pairs: int = 0
    prefill_computed_pairs: int = 0
    decode_useful_pairs: int = 0
    decode_computed_pairs: int = 0
    prefill_rows: int = 0
    decode_rows: int = 0
    sampled_rows: int = 0
    prefill_kv: int = 0
    """KV positions that prefill attention reads: Σ (context + chunk), padded rows: Σ width."""
    decode_longest: int = 0
    """Keys that the longest decode row reads: its computed context + 1."""


def packed_features(works: Sequence[Work], live: int, decode_pairs: int, longest: int) -> Features:
    """Sums of a packed step: `works`, and `live` decodes over `decode_pairs` query-key pairs.

    `longest` is the most pairs of one of the decodes.
    """
    tokens = pairs = read = sampled = 0
    for _, start, n, samples in works:
        tokens += n
        pairs += n * start + n * (n + 1) // 2
        read += start + n
        sampled += samples
    return mixed_features(tokens, pairs, len(works), sampled, read, live, decode_pairs, longest)


def mixed_features(
    tokens: int,
    pairs: int,
    rows: int,
    sampled: int,
    read: int,
    live: int,
    decode_pairs: int,
    longest: int,
) -> Features:
    """Features of a packed step, where useful is all that is computed.

    Args:
        tokens: prompt tokens of its chunks.
        pairs: query-key pairs of its chunks.
        rows: how many chunks there are.
        sampled: chunks that emit a token.
        read: KV positions that the chunks' attention reads.
        live: decodes.
        decode_pairs: query-key pairs of the decodes.
        longest: the most of them that one decode has.
    """
    emitted, keys = sampled + live, decode_pairs
    sums = (
        tokens,
        live,
        tokens,
        live,
        pairs,
        pairs,
        keys,
        keys,
        rows,
        live,
        emitted,
        read,
        longest,
    )
    return NEW(Features, sums)


class Step(NamedTuple):
    """One forward pass.

    One without rows takes no time. It exists under asynchronous scheduling, and where the first
    running request needs a block and is itself the one to be preempted.
    """

    id: int
    layout: Layout
    prefill: tuple[Work, ...]
    decodes: Decodes
    preempted: tuple[Request, ...]
    features: Features
    waiting: int
    running: int
    blocks_used: int


class Wait(NamedTuple):
    """Nothing to run now. Plan again at the next arrival, or at `until` (s) if that is sooner."""

    until: float | None = None
