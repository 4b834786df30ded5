"""The figures of a run, from its tables alone, named as `vllm bench serve` names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving.distribution import Distribution
from serving.gaps import token_gaps
from serving.slo import LATENCIES, attainment

__all__ = ["LATENCIES", "Efficiency", "efficiency", "latencies", "summarize"]

FloatArray = NDArray[np.float64]


def summarize(
    config: Mapping[str, Any],
    requests: pd.DataFrame,
    steps: pd.DataFrame,
    events: pd.DataFrame,
    slo: Mapping[str, float] | None = None,
    goodput: Mapping[str, float] | None = None,
    taken: Mapping[str, Distribution] | None = None,
) -> dict[str, Any]:
    """The figures of one run; an undefined one is None. Latencies are over finished requests.

    Args:
        config: what the run was; used, where present: `policy`, `max_num_batched_tokens` (the
            budget), `kv_blocks` (usable blocks), `peak_flops` (FLOP/s), `peak_bytes_per_s`,
            `enable_prefix_caching`.
        requests, steps, events: tables with the columns of `serving.tables`.
        slo: limits on the run's figures, in ms by name (`ttft_p99_ms`).
        goodput: limits on each request, in ms by latency (`ttft`, `tpot`, `e2el`). With either the
            summary has what `serving.slo.attainment` gives.
        taken: what `latencies` gives for these tables, where it is known already.

    Raises:
        ValueError: a limit on something else, or events that do not fit the other tables.
    """
    status = requests["status"].to_numpy()
    finished = requests[status == "finished"]
    duration = _duration(requests, finished)
    prompt = int(finished["prompt_tokens"].sum())
    output = int(finished["output_tokens"].sum())
    use = efficiency(steps)
    summary: dict[str, Any] = {
        "policy": config.get("policy"),
        "num_prompts": len(requests),
        "completed": len(finished),
        "refused": int(np.sum(status == "refused")),
        "unfinished": int(np.sum(status == "unfinished")),
        "duration": duration,
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": _ratio(len(finished), duration),
        "output_throughput": _ratio(output, duration),
        "total_token_throughput": _ratio(prompt + output, duration),
    }
    taken = taken or latencies(requests, steps, events)
    for name, values in taken.items():
        summary |= _figures(name, values)
    summary |= {
        "padding_ratio": use["whole"].padding_ratio,
        "prefill_padding_ratio": use["prefill"].padding_ratio,
        "decode_padding_ratio": use["decode"].padding_ratio,
        "attention_efficiency": use["whole"].attention_efficiency,
        "steps": len(steps),
        **_step_figures(config, steps),
        "mean_grouping_wait_ms": _ms(Distribution.of(finished["grouping_wait_s"]).mean()),
        "preemptions": int(requests["preemptions"].sum()),
        "prefix_hit_rate": _prefix_hit_rate(config, requests, events),
        **_kv_figures(config, steps),
        **_utilisation(config, steps),
    }
    if slo or goodput:
        summary |= attainment(requests, taken, slo or {}, goodput or {}, duration)
    return summary


def latencies(
    requests: pd.DataFrame, steps: pd.DataFrame, events: pd.DataFrame
) -> dict[str, Distribution]:
    """The distributions of `LATENCIES` over finished requests, in seconds.

    Raises:
        ValueError: events that do not fit the other tables.
    """
    finished = requests[requests["status"] == "finished"]
    return {
        "ttft": Distribution.of(finished["ttft_s"]),
        "tpot": Distribution.of(finished["tpot_s"]),
        "itl": token_gaps(requests, steps, events),
        "e2el": Distribution.of(finished["e2e_s"]),
        "queue": Distribution.of(finished["queue_s"]),
    }


@dataclass(frozen=True)
class Efficiency:
    """How much of what the hardware computed was useful: token slots, and query-key pairs."""

    useful_slots: int
    slots: int
    useful_pairs: int
    pairs: int

    @property
    def padding_ratio(self) -> float | None:
        """1 − useful slots / computed slots; None where nothing was computed."""
        return 1 - self.useful_slots / self.slots if self.slots else None

    @property
    def attention_efficiency(self) -> float | None:
        """Useful query-key pairs / computed pairs; None where nothing was computed."""
        return self.useful_pairs / self.pairs if self.pairs else None


def efficiency(steps: pd.DataFrame) -> dict[str, Efficiency]:
    """The use made of what was computed, for `prefill`, `decode` and the `whole` run."""
    names = ("tokens", "slots", "useful_pairs", "computed_pairs")
    prefill, decode = (
        [int(steps[f"{phase}_{name}"].sum()) for name in names] for phase in ("prefill", "decode")
    )
    return {
        "prefill": Efficiency(*prefill),
        "decode": Efficiency(*decode),
        "whole": Efficiency(*(p + d for p, d in zip(prefill, decode, strict=True))),
    }


def _duration(requests: pd.DataFrame, finished: pd.DataFrame) -> float | None:
    """Seconds from the first arrival to the last finish; None if nothing finished."""
    if not len(finished):
        return None
    return float(finished["finished_s"].max() - requests["arrival_s"].min())


def _figures(name: str, values: Distribution) -> dict[str, float | None]:
    """Mean, median, p90, p99 and std of a latency given in seconds, in ms."""
    figures = {
        "mean": values.mean(),
        "median": values.percentile(50),
        "p90": values.percentile(90),
        "p99": values.percentile(99),
        "std": values.std(),
    }
    return {f"{figure}_{name}_ms": _ms(value) for figure, value in figures.items()}


def _step_figures(config: Mapping[str, Any], steps: pd.DataFrame) -> dict[str, float | None]:
    """Tokens a step and use of the budget over steps with rows; running weighted by time."""
    slots = (steps["prefill_slots"] + steps["decode_slots"]).to_numpy(np.float64)
    tokens = (steps["prefill_tokens"] + steps["decode_tokens"]).to_numpy(np.float64)
    mean_slots, mean_tokens = (_mean(column[slots > 0]) for column in (slots, tokens))
    return {
        "mean_step_tokens": mean_tokens,
        "budget_use": _ratio(mean_slots, config.get("max_num_batched_tokens")),
        "mean_running": _time_mean(steps, "running"),
    }


def _kv_figures(config: Mapping[str, Any], steps: pd.DataFrame) -> dict[str, float | None]:
    """Share of the usable KV blocks in use: mean over busy time, and the peak."""
    blocks = config.get("kv_blocks")
    peak = int(steps["kv_blocks_used"].max()) if len(steps) else None
    return {
        "kv_mean_fraction": _ratio(_time_mean(steps, "kv_blocks_used"), blocks),
        "kv_peak_fraction": _ratio(peak, blocks),
    }


def _utilisation(config: Mapping[str, Any], steps: pd.DataFrame) -> dict[str, float | None]:
    """Model FLOP/s and bytes/s over what the hardware could do in the busy time."""
    busy = float(np.sum(_durations(steps)))
    rates = {
        "mfu": _ratio(_total(steps, "flops"), busy),
        "mbu": _ratio(_total(steps, "bytes"), busy),
    }
    return {
        "mfu": _ratio(rates["mfu"], config.get("peak_flops")),
        "mbu": _ratio(rates["mbu"], config.get("peak_bytes_per_s")),
    }


def _prefix_hit_rate(
    config: Mapping[str, Any], requests: pd.DataFrame, events: pd.DataFrame
) -> float | None:
    """Share of the admitted requests' prompt tokens found in the cache at their first admission."""
    if not config.get("enable_prefix_caching"):
        return None
    admitted = events[(events["kind"] == "admit").to_numpy()]
    first = admitted.sort_values("step", kind="stable").drop_duplicates("request")
    prompts = requests.loc[requests["request"].isin(first["request"]), "prompt_tokens"]
    return _ratio(int(first["tokens"].sum()), int(prompts.sum()))


def _durations(steps: pd.DataFrame) -> FloatArray:
    """Seconds of each step, shape [steps]."""
    durations: FloatArray = steps["end_s"].to_numpy() - steps["start_s"].to_numpy()
    return durations


def _time_mean(steps: pd.DataFrame, column: str) -> float | None:
    """The mean of a column over the time in which steps ran."""
    seconds = _durations(steps)
    return _ratio(float(np.dot(steps[column].to_numpy(np.float64), seconds)), float(seconds.sum()))


def _total(steps: pd.DataFrame, column: str) -> float | None:
    """The sum of a column, None if any step lacks it."""
    total = float(np.sum(steps[column].to_numpy(np.float64)))
    return None if np.isnan(total) else total


def _mean(values: FloatArray) -> float | None:
    return float(values.mean()) if len(values) else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    """part / whole, None where either is undefined or the whole is nothing."""
    return part / whole if part is not None and whole else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
