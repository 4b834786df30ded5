"""How long does a step take? The question every cost model answers."""

from __future__ import annotations

from typing import Protocol

from serving.step import Features


class CostModel(Protocol):
    """Seconds of a step from its features as laid out, never from the policy's name.

    Only elementwise + - * / and max, in one fixed order of terms, alike in both methods, so that
    stepping and jumping agree to the last bit.
    """

    def seconds(self, f: Features) -> float:
        """Seconds of one step."""

    def seconds_run(self, f: Features, k: int) -> list[float]:
        """Seconds of `k` decode steps in a row, `k` plain floats.

        The first is `f`; in each later one every live row has one token of context more:
        `decode_useful_pairs` grows by `decode_tokens` a step, `decode_computed_pairs` by
        `decode_rows`, `decode_longest` by one.
        """
