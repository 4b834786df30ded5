"""The columns of a record's tables: their names on disk, their types, and what each one says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

REQUESTS: dict[str, str] = {
    "request": "int64",  # row in the trace
    "arrival_s": "float64",
    "prompt_tokens": "int64",
    "output_tokens": "int64",
    "scheduled_s": "float64",  # start of the first step that holds it
    "first_token_s": "float64",  # end of the step that completes the prompt; NaN without output
    "finished_s": "float64",
    "ttft_s": "float64",
    "tpot_s": "float64",  # NaN with fewer than two output tokens
    "e2e_s": "float64",
    "queue_s": "float64",
    "grouping_wait_s": "float64",  # the part of queue_s in which the policy chose to wait
    "preemptions": "int64",
    "status": "object",  # finished, refused, unfinished
    "reason": "object",  # why it was refused, otherwise None
    "replica": "int64",  # -1 for a request that no replica took
}

STEPS: dict[str, str] = {
    "step": "int64",
    "start_s": "float64",
    "end_s": "float64",
    "prefill_tokens": "int64",
    "decode_tokens": "int64",
    "prefill_slots": "int64",
    "decode_slots": "int64",
    "prefill_useful_pairs": "int64",
    "prefill_computed_pairs": "int64",
    "decode_useful_pairs": "int64",
    "decode_computed_pairs": "int64",
    "prefill_rows": "int64",
    "decode_rows": "int64",
    "sampled_rows": "int64",
    "prefill_kv": "int64",
    "decode_longest": "int64",  # keys that the longest decode row read
    "flops": "float64",  # useful arithmetic of the model; NaN without a model
    "bytes": "float64",  # weights and KV moved; NaN without a model
    "waiting": "int64",  # after the plan
    "running": "int64",  # after the plan, requests that finish in this step included
    "kv_blocks_used": "int64",  # after the plan
    "preempted": "int64",
    "replica": "int64",
}

EVENTS: dict[str, str] = {
    "step": "int64",
    "request": "int64",
    "kind": "category",
    "tokens": "int64",
    "row": "int64",  # row of a padded batch, otherwise -1
}

KINDS: dict[str, str] = {
    "admit": "entered running; tokens = those found in the prefix cache",
    "chunk": "prompt tokens computed in this step (after a preemption, of prompt + outputs)",
    "first": "its known tokens are all computed: it emits a token, and decodes from now on",
    "skip": "a decode that got no token in this step, for want of token budget",
    "preempt": "lost its blocks and went back to waiting; tokens = computed tokens lost",
    "finish": "emitted its last token in this step (without outputs: ended with its prefill)",
    "leave": "its row of a drained batch is given up; tokens = steps the row was held in vain",
}
"""Kinds of event. A request decodes in every step with decode rows after `first`, until `finish`
or `preempt`, except where a `skip` says so: a line per change, never per decode."""


def finished_of(requests: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The numbers in columns of `REQUESTS`, shape [requests] each, of the finished ones alone."""
    finished = np.asarray(requests["status"]) == "finished"
    numbers = {n: np.asarray(requests[n]) for n, dtype in REQUESTS.items() if dtype != "object"}
    if finished.all():
        return numbers
    return {name: column[finished] for name, column in numbers.items()}
