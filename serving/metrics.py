"""The figures of a run, named as `vllm bench serve` names them, from its request table and what is
folded of its steps and events: either as they come, or from tables of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from serving.distribution import Distribution
from serving.gaps import token_gaps
from serving.slo import LATENCIES, attainment
from serving.tables import STEPS, finished_of
from serving.totals import StepTotals

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LATENCIES", "Folded", "latencies", "summarize"]


@dataclass(frozen=True, eq=False)
class Folded:
    """What the figures of a run need of its steps and events."""

    steps: StepTotals
    gaps: Distribution
    """Between the output tokens of a finished request, s."""
    hit_tokens: int
    """Prompt tokens found in the prefix cache, of requests at their first admission."""
    admitted_tokens: int
    """Prompt tokens of the requests that were admitted."""

    @classmethod
    def of(cls, requests: pd.DataFrame, steps: pd.DataFrame, events: pd.DataFrame) -> Folded:
        """The same from tables with the columns of `serving.tables`.

        Raises:
            ValueError: events that do not fit the other tables.
        """
        totals = StepTotals()
        totals.add({name: steps[name].to_numpy() for name in STEPS})
        admitted = events[(events["kind"] == "admit").to_numpy()]
        first = admitted.sort_values("step", kind="stable").drop_duplicates("request")
        prompts = requests.loc[requests["request"].isin(first["request"]), "prompt_tokens"]
        return cls(
            totals,
            token_gaps(requests, steps, events),
            int(first["tokens"].sum()),
            int(prompts.sum()),
        )


def summarize(
    config: Mapping[str, Any],
    requests: Mapping[str, NDArray[Any]],
    folded: Folded,
    slo: Mapping[str, float] | None = None,
    goodput: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The figures of one run; an undefined one is None. Latencies are over finished requests.

    Args:
        config: what the run was; used, where present: `policy`, `max_num_batched_tokens` (the
            budget), `kv_blocks` (usable blocks), `peak_flops` (FLOP/s), `peak_bytes_per_s`,
            `enable_prefix_caching`.
        requests: columns of `serving.tables.REQUESTS`, shape [requests] each.
        folded: of the steps and events.
        slo: limits on the run's figures, in ms by name (`ttft_p99_ms`).
        goodput: limits on each request, in ms by latency (`ttft`, `tpot`, `e2el`). With either the
            summary has what `serving.slo.attainment` gives.

    Raises:
        ValueError: a limit on something else.
    """
    status = np.asarray(requests["status"])
    finished = finished_of(requests)
    count, completed = len(status), len(finished["finished_s"])
    duration = None  # from the first arrival to the last finish, s
    if completed:
        duration = float(finished["finished_s"].max() - np.min(requests["arrival_s"]))
    prompt = int(finished["prompt_tokens"].sum())
    output = int(finished["output_tokens"].sum())
    steps, use = folded.steps, folded.steps.efficiency
    summary: dict[str, Any] = {
        "policy": config.get("policy"),
        "num_prompts": count,
        "completed": completed,
        "refused": int(np.sum(status == "refused")),
        "unfinished": int(np.sum(status == "unfinished")),
        "duration": duration,
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": _ratio(completed, duration),
        "output_throughput": _ratio(output, duration),
        "total_token_throughput": _ratio(prompt + output, duration),
    }
    taken = latencies(requests, folded)
    for name, values in taken.items():
        summary |= _figures(name, values)
    summary |= {
        "padding_ratio": use["whole"].padding_ratio,
        "prefill_padding_ratio": use["prefill"].padding_ratio,
        "decode_padding_ratio": use["decode"].padding_ratio,
        "attention_efficiency": use["whole"].attention_efficiency,
        "steps": steps.steps,
        **_step_figures(config, steps),
        "mean_grouping_wait_ms": _ms(Distribution.of(finished["grouping_wait_s"]).mean()),
        "preemptions": int(np.sum(requests["preemptions"])),
        "prefix_hit_rate": _prefix_hit_rate(config, folded),
        **_kv_figures(config, steps),
        **_utilisation(config, steps),
    }
    if slo or goodput:
        summary |= attainment(requests, taken, slo or {}, goodput or {}, duration)
    return summary


def latencies(requests: Mapping[str, NDArray[Any]], folded: Folded) -> dict[str, Distribution]:
    """The distributions of `LATENCIES` over finished requests, in seconds."""
    finished = finished_of(requests)
    return {
        "ttft": Distribution.of(finished["ttft_s"]),
        "tpot": Distribution.of(finished["tpot_s"]),
        "itl": folded.gaps,
        "e2el": Distribution.of(finished["e2e_s"]),
        "queue": Distribution.of(finished["queue_s"]),
    }


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


def _step_figures(config: Mapping[str, Any], steps: StepTotals) -> dict[str, float | None]:
    """Tokens a step and use of the budget over steps with rows; running weighted by time."""
    use = steps.efficiency["whole"]
    mean_slots = _ratio(use.slots, steps.filled)
    return {
        "mean_step_tokens": _ratio(use.useful_slots, steps.filled),
        "budget_use": _ratio(mean_slots, config.get("max_num_batched_tokens")),
        "mean_running": _ratio(steps.running_s.value, steps.busy_s.value),
    }


def _kv_figures(config: Mapping[str, Any], steps: StepTotals) -> dict[str, float | None]:
    """Share of the usable KV blocks in use: mean over busy time, and the peak."""
    blocks = config.get("kv_blocks")
    return {
        "kv_mean_fraction": _ratio(_ratio(steps.kv_s.value, steps.busy_s.value), blocks),
        "kv_peak_fraction": _ratio(steps.kv_peak, blocks),
    }


def _utilisation(config: Mapping[str, Any], steps: StepTotals) -> dict[str, float | None]:
    """Model FLOP/s and bytes/s over what the hardware could do in the busy time."""
    busy = steps.busy_s.value
    return {
        "mfu": _ratio(_ratio(steps.flops.value, busy), config.get("peak_flops")),
        "mbu": _ratio(_ratio(steps.bytes.value, busy), config.get("peak_bytes_per_s")),
    }


def _prefix_hit_rate(config: Mapping[str, Any], folded: Folded) -> float | None:
    """Share of the admitted requests' prompt tokens found in the cache at their first admission."""
    if not config.get("enable_prefix_caching"):
        return None
    return _ratio(folded.hit_tokens, folded.admitted_tokens)


def _ratio(part: float | None, whole: float | None) -> float | None:
    """part / whole, None where either is undefined or the whole is nothing."""
    return part / whole if part is not None and whole else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
