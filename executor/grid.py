"""The single steps that a profile times: their shapes, over all that a step's cost depends on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from policies.drain import padded_features
from serving.request import Request
from serving.step import Features, Work, packed_features


@dataclass(frozen=True)
class Cell:
    """One step.

    In a padded one every row counts `width` columns: a prompt's chunk is its own tokens, and a
    decode's context is the width and what was generated since.
    """

    kind: str
    chunks: tuple[tuple[int, int], ...] = ()
    """Prompts: the context of each, and the tokens that the step computes of it."""
    contexts: tuple[int, ...] = ()
    """Decodes: the tokens before each."""
    width: int = 0
    """Columns of a padded batch's prompts; 0: packed."""

    @property
    def slots(self) -> int:
        """Tokens computed."""
        prompts = sum(n for _, n in self.chunks)
        if self.width and self.chunks:
            prompts = self.width * len(self.chunks)
        return prompts + len(self.contexts)

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV memory that it touches, in pages of 256 at most."""
        lengths = [c + n for c, n in self.chunks] + [c + 1 for c in self.contexts]
        if self.width:
            return len(lengths) * (max(self.width, *lengths) + 1)
        return sum(-(-n // 256) * 256 for n in lengths)

    @property
    def longest(self) -> int:
        """Tokens of its longest sequence."""
        lengths = [c + n for c, n in self.chunks] + [c + 1 for c in self.contexts]
        return max(self.width + 1, *lengths)

    @property
    def features(self) -> Features:
        """What the step costs by."""
        rows, nobody = len(self.contexts), Request(0, 0.0, 1, 1)
        works = [Work(nobody, c, n, True) for c, n in self.chunks]
        longest = max(self.contexts) + 1 if rows else 0
        f = packed_features(works, rows, sum(self.contexts) + rows, longest)
        return padded_features(f, len(works), self.width) if self.width and works else f


def make_grid(
    quick: bool, most_slots: int, longest: int, kv_tokens: int, seed: int = 0
) -> list[Cell]:
    """All cells that fit.

    Args:
        quick: a coarse grid of short steps.
        most_slots: tokens a step at most.
        longest: tokens a sequence at most.
        kv_tokens: tokens of KV memory at most.
        seed: of the uneven lengths.
    """
    found = dict.fromkeys(_cells(quick, seed))
    return [
        c
        for c in found
        if c.slots <= most_slots and c.longest <= longest and c.kv_tokens <= kv_tokens
    ]


def _cells(quick: bool, seed: int) -> Iterator[Cell]:
    tokens = _up(16, 2048, 2) if quick else [1, *_up(8, 256, 1.5), *_up(256, 16384, 1.5)]
    chunks = [64, 256, 512] if quick else _up(16, 8192, 2)
    before = [256, 1024, 3000] if quick else _up(64, 65536, 2)
    rows = _up(1, 64, 2) if quick else [1, 2, 4, *_up(8, 256, 1.5)]
    contexts = [64, 512, 1500] if quick else _up(16, 32768, 2)
    for n in tokens:
        yield Cell("prefill", ((0, n),))
    for n, c in product(chunks, before):
        yield Cell("chunk", ((c, n),))
    for r, c in product(rows, contexts):
        yield Cell("decode", contexts=(c,) * r)
    for n, r, c in product(
        [32, 128, 512] if quick else chunks,
        [1, 4, 32] if quick else _up(1, 256, 2),
        [400] if quick else contexts[2::2],
    ):
        yield Cell("mixed", ((0, n),), (c,) * r)
    widths = [64, 128, 512] if quick else _up(64, 8192, 2)
    for r, w in product([2, 4, 8] if quick else _up(1, 256, 2), widths):
        yield Cell("padded prefill", ((0, w),) * r, width=w)
    for r, w in product([1, 2, 4, 8, 32] if quick else _up(1, 256, 2), widths):
        yield Cell("padded decode", contexts=(w + 15,) * r, width=w)
    yield from _uneven(quick, np.random.default_rng(seed))


def _uneven(quick: bool, random: np.random.Generator) -> Iterator[Cell]:
    """Lengths as real batches have them: few long, many short."""

    def lengths(count: int, mean: int) -> list[int]:
        drawn = random.lognormal(np.log(mean), 0.9, count)
        return [int(n) for n in np.clip(drawn, 8, 6 * mean)]

    counts, means = ([8, 16, 48], [100, 300]) if quick else ([4, 8, 16, 64, 200], [128, 512, 2048])
    for r, mean in product(counts, means):
        yield Cell("uneven decode", contexts=tuple(lengths(r, mean)))
        prompts = tuple((0, n) for n in lengths(max(r // 4, 2), mean // 2))
        yield Cell("uneven prefill", prompts)
        yield Cell("uneven mixed", prompts[:3], tuple(lengths(r, mean)))
        yield Cell(
            "uneven chunks", tuple(zip(lengths(3, mean), lengths(3, mean // 4), strict=True))
        )


def _up(first: int, last: int, factor: float) -> list[int]:
    """Rising sizes from first to last, each about `factor` times the one before."""
    count = int(np.ceil(np.log(last / first) / np.log(factor))) + 1
    return [int(x) for x in np.unique(np.round(np.geomspace(first, last, count)))]
