"""A run measured by a client: the JSON of `vllm bench serve --save-result --save-detailed`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthwise.validate.measured import Measured, MeasuredError, requests_table
from lengthwise.validate.settings import model_called
from serving.distribution import Distribution
from traces.trace import Trace

DETAILS = ("input_lens", "output_lens", "ttfts", "itls")
"""Lists with an entry a request: tokens, tokens, seconds, lists of seconds."""


def read_bench(path: Path) -> Measured:
    """Read the file; failed requests are left out, and counted in a note.

    Arrivals are `start_times`. A file without them is understood where all requests were sent at
    once (`request_rate` inf and no `max_concurrency`).

    Raises:
        MeasuredError: not such a file, saved without details, or of unknown arrival times.
    """
    raw = _read(path)
    lists = {name: raw.get(name) for name in DETAILS}
    lacks = [name for name, value in lists.items() if not isinstance(value, list)]
    if lacks:
        raise MeasuredError(
            f"{path}: no {', '.join(lacks)}; run vllm bench serve with --save-result and "
            "--save-detailed"
        )
    count = len(raw["ttfts"])
    errors = raw.get("errors") or [""] * count
    starts = _starts(raw, count, path)
    sizes = {len(raw[name]) for name in DETAILS} | {len(errors), len(starts)}
    if sizes != {count}:
        raise MeasuredError(f"{path}: lists of different lengths: {sorted(sizes)}")
    try:
        good = np.array([not error for error in errors], bool)
        prompts, outputs = (np.array(raw[n], np.int64) for n in ("input_lens", "output_lens"))
        ttft = np.array(raw["ttfts"], np.float64)
        gaps = [np.array(row, np.float64) for row in raw["itls"]]
    except (TypeError, ValueError) as error:
        raise MeasuredError(f"{path}: an entry that is no number ({error})") from None
    kept = np.flatnonzero(good)
    kept = kept[np.argsort(starts[kept], kind="stable")]
    if not len(kept):
        raise MeasuredError(f"{path}: all {count} requests failed")
    spent = np.array([gaps[i].sum() for i in kept])
    trace = Trace(starts[kept] - starts[kept[0]], prompts[kept], outputs[kept], name=path.name)
    ttft, outputs = ttft[kept], outputs[kept]
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(outputs > 1, spent / (outputs - 1), np.nan)
    settings: dict[str, Any] = {"policy": "chunked-prefill", "like": "vllm"}
    if raw.get("model_id"):
        settings["model"] = model_called(str(raw["model_id"]))
    failed = count - len(kept)
    return Measured(
        path.name,
        trace,
        requests_table(trace, ttft, tpot, ttft + spent),
        settings,
        Distribution.of(np.concatenate([gaps[i] for i in kept])),
        notes=(f"{failed} failed requests are left out",) if failed else (),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MeasuredError(f"{path}: not a readable JSON file ({error})") from None
    if not isinstance(raw, dict):
        raise MeasuredError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    return raw


def _starts(raw: dict[str, Any], count: int, path: Path) -> NDArray[np.float64]:
    """When each request was sent, s, shape [requests]."""
    if raw.get("start_times") is not None:
        return np.array(raw["start_times"], np.float64)
    if str(raw.get("request_rate")) == "inf" and not raw.get("max_concurrency"):
        return np.zeros(count)
    raise MeasuredError(
        f"{path}: no start_times, so arrivals are unknown; a newer vLLM saves them (or send all "
        "at once: --request-rate inf without --max-concurrency)"
    )
