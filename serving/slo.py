"""Limits on latencies: what a run, or each of its requests, has to keep within."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.distribution import Distribution
from serving.tables import finished_of

LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue")
"""Latencies in the order in which they are printed; in a summary `{mean,...}_{latency}_ms`."""

GOODPUT = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2e_s"}
"""What a per-request limit may bound, as `vllm bench serve` has it, and its column."""

COLUMNS = {**GOODPUT, "queue": "queue_s"}
"""Latencies that a request has one of, and their columns in the request table."""

_NAME = re.compile(rf"({'|'.join(LATENCIES)})_(mean|median|std|p(\d+(?:\.\d+)?))_ms")
_COMMON = ("mean", "median", "p50", "p90", "p95", "p99", "p99.9", "std")


class SloError(ValueError):
    """A limit that says nothing: an unknown figure, or a number of ms that is not above 0."""


@dataclass(frozen=True)
class Limit:
    """One figure of a run and the most it may be, such as `ttft_p99_ms` and 500."""

    name: str
    latency: str
    figure: str
    """`mean`, `std`, or `percentile`."""
    q: float
    """The percentile, 0 to 100; nan for others."""
    limit_ms: float

    @classmethod
    def of(cls, name: str, limit_ms: float) -> Limit:
        """The limit called `name`: `LATENCY_FIGURE_ms`.

        Raises:
            SloError: an unknown name, with the nearest; a limit that is not above 0.
        """
        match = _NAME.fullmatch(name)
        q = float("nan") if match is None else float(match[3] or "nan")
        if match is None or q > 100:
            raise SloError(
                f"{name}: unknown; {_nearest(name)}write LATENCY_FIGURE_ms, LATENCY one of "
                f"{', '.join(LATENCIES)}; FIGURE mean, median, std or a percentile as p99 or p99.9"
            )
        figure = match[2]
        if figure == "median":
            q = 50.0
        kind = figure if figure in ("mean", "std") else "percentile"
        return cls(name, match[1], kind, q, positive(name, limit_ms))

    def value_s(self, values: Distribution, missing: int) -> float | None:
        """The figure, in seconds; None of nothing.

        Args:
            values: of those that finished.
            missing: how many have no value because they did not finish: they took for ever.
        """
        if not len(values):
            return float("inf") if missing else None
        if not missing:
            return values.percentile(self.q) if self.figure == "percentile" else self._of(values)
        place = self.q / 100 * (len(values) + missing - 1)
        if self.figure != "percentile" or place > len(values) - 1:
            return float("inf")
        return values.percentile(100 * place / max(len(values) - 1, 1))

    def _of(self, values: Distribution) -> float | None:
        return values.mean() if self.figure == "mean" else values.std()


def _nearest(name: str) -> str:
    """The known name whose words are most like those of `name`, in any order."""
    names = [f"{latency}_{figure}_ms" for latency in LATENCIES for figure in _COMMON]
    known = {_words(known): known for known in names}
    close = get_close_matches(_words(name), known, n=1, cutoff=0.5)
    return f"did you mean {known[close[0]]}? " if close else ""


def _words(name: str) -> str:
    return "_".join(sorted(name.split("_")))


def positive(name: str, value: object) -> float:
    """`value` as milliseconds.

    Raises:
        SloError: not a finite number above 0.
    """
    try:
        number = float(str(value))
    except ValueError:
        number = float("nan")
    if not (number > 0 and np.isfinite(number)):
        raise SloError(f"{name}: give a number of milliseconds above 0, not {value}")
    return number


def parse_slo(text: str) -> dict[str, float]:
    """`ttft_p99_ms=500,tpot_p99_ms=50` as limits in ms by name.

    Raises:
        SloError: not of this form, or as in `Limit.of`.
    """
    limits = _pairs(text, ",", "=", "ttft_p99_ms=500,tpot_p99_ms=50")
    return {name: Limit.of(name, positive(name, value)).limit_ms for name, value in limits}


def parse_goodput(text: str) -> dict[str, float]:
    """`ttft:500 tpot:50`, as `vllm bench serve` writes it, as limits in ms by latency.

    Raises:
        SloError: not of this form, or a limit on something else.
    """
    limits = _pairs(text, " ", ":", "ttft:500 tpot:50")
    return {name: positive(name, value) for name, value in check_goodput(dict(limits)).items()}


def check_goodput(limits: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same, if it limits only what a request has.

    Raises:
        SloError: a limit on something else, with the nearest.
    """
    for name in limits:
        if name not in GOODPUT:
            close = get_close_matches(name, GOODPUT, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise SloError(f"{name!r} is not one of {', '.join(GOODPUT)}. {hint}".rstrip())
    return limits


def _pairs(text: str, between: str, sign: str, example: str) -> list[tuple[str, str]]:
    """`name`, `value` of each part, no name twice."""
    parts = [part.strip() for part in text.split(between) if part.strip()]
    pairs = [tuple(half.strip() for half in part.split(sign)) for part in parts]
    if not pairs or any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise SloError(f"give limits in ms, such as {example}")
    names = [pair[0] for pair in pairs]
    if len(set(names)) < len(names):
        raise SloError(f"{max(names, key=names.count)} is given twice")
    return [(pair[0], pair[1]) for pair in pairs]


def per_request(slo: Mapping[str, float], goodput: Mapping[str, float]) -> dict[str, float]:
    """What each request has to keep: limits in ms by latency of `COLUMNS`.

    A limit on a percentile, median or mean of the run is one on each request; of several on one
    latency the largest. One on a spread, or on gaps between tokens, is none.
    """
    limits: dict[str, float] = {}
    for limit in (Limit.of(name, ms) for name, ms in slo.items()):
        if limit.latency in COLUMNS and limit.figure != "std":
            limits[limit.latency] = max(limits.get(limit.latency, 0.0), limit.limit_ms)
    for latency, ms in goodput.items():
        limits[latency] = min(limits.get(latency, ms), ms)
    return limits


def meets(finished: Mapping[str, NDArray[Any]], limits: Mapping[str, float]) -> NDArray[np.bool_]:
    """Which finished requests meet every limit, shape [finished]; an undefined figure meets it.

    Args:
        finished: columns of the request table, shape [finished] each.
        limits: in ms by latency of `COLUMNS`.
    """
    good = np.ones(len(finished["e2e_s"]), np.bool_)
    for name, limit_ms in limits.items():
        value = finished[COLUMNS[name]]
        good &= np.isnan(value) | (value * 1e3 <= limit_ms)
    return good


def attainment(
    requests: Mapping[str, NDArray[Any]],
    latencies: Mapping[str, Distribution],
    slo: Mapping[str, float],
    goodput: Mapping[str, float],
    duration: float | None,
) -> dict[str, Any]:
    """The keys that limits add to a summary: `request_goodput`, `slo_attainment`, and of `--slo`
    `slo_met` and `slo`.

    Args:
        requests: columns of the request table, shape [requests] each.
        latencies: distributions of `LATENCIES` over finished requests, s.
        slo: limits in ms by name (`ttft_p99_ms`).
        goodput: limits in ms by latency (`ttft`).
        duration: of the run, s.

    Raises:
        SloError: a limit on something that there is not.
    """
    status = np.asarray(requests["status"])
    finished = finished_of(requests)
    limits = per_request(slo, check_goodput(goodput))
    good = int(meets(finished, limits).sum()) if limits else None
    added: dict[str, Any] = {
        "request_goodput": None if good is None or not duration else good / duration,
        "slo_attainment": None if good is None or not len(status) else good / len(status),
    }
    if slo:
        outputs = np.asarray(requests["output_tokens"])[status != "finished"]
        parts = {name: _part(Limit.of(name, ms), latencies, outputs) for name, ms in slo.items()}
        added["slo_met"] = bool(len(finished["e2e_s"])) and all(
            part["met"] for part in parts.values()
        )
        added["slo"] = parts
    return added


def _part(
    limit: Limit, latencies: Mapping[str, Distribution], outputs: NDArray[np.int64]
) -> dict[str, Any]:
    """One limit of a run: its value, whether it is met, and the share of values within it."""
    values = latencies[limit.latency]
    missing = _missing(limit.latency, outputs)
    value = limit.value_s(values, missing)
    within = int(np.searchsorted(values.values * 1e3, limit.limit_ms, side="right"))
    count = len(values) + missing
    reached = int(values.ends[within - 1]) if within else 0
    return {
        "limit_ms": limit.limit_ms,
        "value_ms": None if value is None or np.isinf(value) else value * 1e3,
        "met": value is None or value * 1e3 <= limit.limit_ms,
        "attainment": reached / count if count else None,
    }


def _missing(latency: str, outputs: NDArray[np.int64]) -> int:
    """How many values of a latency those that did not finish would have had."""
    if latency == "itl":
        return int(np.maximum(outputs - 1, 0).sum())
    least = {"ttft": 1, "tpot": 2}.get(latency, 0)
    return int((outputs >= least).sum())
