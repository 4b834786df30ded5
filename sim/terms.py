"""The terms of a fitted step time: what multiplies what, and how they are kept in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sim.curve import Curve

FAR_KEYS = 1024
"""Mean keys of a decode from which `far_rows` counts."""


@dataclass(frozen=True)
class Points:
    """A curve from the origin of its x: straight between points, `end` seconds per x after them."""

    x: tuple[float, ...] = (0.0, 1.0)
    seconds: tuple[float, ...] = (0.0, 0.0)
    end: float = 0.0

    def curve(self) -> Curve:
        """The same, ready to evaluate."""
        return Curve(self.x, self.seconds, self.end)


@dataclass(frozen=True)
class Terms:
    """Seconds that a step takes, by what it holds; every one at least 0.

    With s slots, p of them of prefill, c = p / prefill rows (the mean chunk), k = prefill_kv /
    prefill rows (the mean keys of a prompt), D computed decode pairs, r decode rows, d = D / r,
    l = decode_longest:

        step + slots(s) + sampled_row × sampled rows
        + prefill + prefill_slots(p) + prefill_pair × prefill pairs + prefill_kv × chunk_kv(c)
          + key × max(k, d)                                       where there is prefill
        + decode_row × r + decode_pairs(D) + (l - d) × decode_tail(r)
                                                                  where there is no prefill
        + mixed_row × r + mixed_pairs(D) + d × mixed_rows(r)
          + max(d - 1024, 0) × far_rows(r) + (max(k, l) - max(k, d)) × mixed_tail(r)
                                                                  where there are both

    Decodes have two sets because attention kernels treat them differently beside a prompt: a row's
    keys are then not split over the GPU, so the longest row (`key`) and the number of rows that
    fit side by side (`mixed_rows`) show; many rows of many keys (`far_rows`) miss the cache. Where
    rows differ, all wait for the longest (the tails): beside a prompt always, alone where there are
    rows enough that a row's keys are not split either.
    """

    step: float = 0.0
    slots: Points = Points()
    sampled_row: float = 0.0
    prefill: float = 0.0
    prefill_slots: Points = Points()
    prefill_pair: float = 0.0
    chunk_kv: Points = Points()
    key: float = 0.0
    decode_row: float = 0.0
    decode_pairs: Points = Points()
    mixed_row: float = 0.0
    mixed_pairs: Points = Points()
    mixed_rows: Points = Points()
    far_rows: Points = Points()
    decode_tail: Points = Points()
    mixed_tail: Points = Points()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, seconds each."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Terms:
        """The terms of `to_dict`.

        Raises:
            ValueError: a term missing or unknown, or one that is no number of at least 0.
        """
        names = [f.name for f in fields(cls)]
        if set(raw) != set(names):
            odd = sorted(set(raw) ^ set(names))
            raise ValueError(f"terms missing or unknown: {', '.join(odd)}")
        values: dict[str, Any] = {
            f.name: (_points if f.type == "Points" else _number)(f.name, raw[f.name])
            for f in fields(cls)
        }
        return cls(**values)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise ValueError(f"term {name} must be a number of at least 0, not {value!r}")
    return float(value)


def _points(name: str, raw: Any) -> Points:
    if not isinstance(raw, dict) or set(raw) != {"x", "seconds", "end"}:
        raise ValueError(f"term {name} must have x, seconds and end")
    x, seconds = (tuple(_number(name, v) for v in raw[k]) for k in ("x", "seconds"))
    points = Points(x, seconds, _number(name, raw["end"]))
    try:
        points.curve()
    except ValueError as error:
        raise ValueError(f"term {name}: {error}") from None
    return points
