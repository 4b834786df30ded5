"""Prompt hashes become keys of KV blocks, and what hits between two prompts is what they share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lengthwise
from lengthwise.prepare import block_keys, blocks_per_hash, requests_of
from serving.prefix import PrefixBlocks
from serving.request import Request
from tests.strategies import examples
from traces import Trace
from traces.trace import BlockHashes


def chained(tokens: list[int], unit: int, names: dict[tuple[int, ...], int]) -> list[int]:
    """A hash for every `unit` tokens: one name for each beginning of a prompt."""
    heads = [tuple(tokens[:end]) for end in range(unit, len(tokens) + unit, unit)]
    return [names.setdefault(head, len(names)) for head in heads]


def hashed(prompts: list[list[int]], unit: int) -> Trace:
    names: dict[tuple[int, ...], int] = {}
    rows = [chained(prompt, unit, names) for prompt in prompts]
    offsets = np.cumsum([0] + [len(row) for row in rows])
    ids = np.array([i for row in rows for i in row], np.int64)
    lengths = np.array([len(prompt) for prompt in prompts])
    count = len(prompts)
    return Trace(
        np.arange(count) * 100.0, lengths, np.ones(count, np.int64), None,
        BlockHashes(ids, offsets, unit),
    )  # fmt: skip


def shared_blocks(prompt: list[int], earlier: list[list[int]], size: int, unit: int) -> int:
    """Full blocks at its head that some earlier prompt has too, as far as hashes can tell.

    A block is known by the hash of the unit that holds its last token; that hash is the same only
    where the whole unit is, or where the prompt ends in it at the same token.
    """
    most = (len(prompt) - 1) // size
    found = 0
    for i in range(most):
        last = (i + 1) * size - 1
        upto = (last // unit + 1) * unit
        if not any(e[:upto] == prompt[:upto] and len(e) > last for e in earlier):
            break
        found += 1
    return found


@given(
    prompts=st.lists(
        st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=40), min_size=1, max_size=8
    ),
    size=st.sampled_from([1, 2, 3, 4]),
    unit=st.sampled_from([1, 2, 3, 4, 6, 8, 12]),
)
@examples(150)
def test_hits_are_the_tokens_that_prompts_share(
    prompts: list[list[int]], size: int, unit: int
) -> None:
    """One request after the other, the cache without limit, down to the tokens themselves."""
    trace = hashed(prompts, unit)
    blocks = PrefixBlocks(None, size, blocks_per_hash(trace, size))
    for i, request in enumerate(requests_of(trace, size, hashed=True)):
        hits, idle = blocks.hit(request)
        assert hits == idle
        assert hits == shared_blocks(prompts[i], prompts[:i], size, unit)
        blocks.enter(request, hits, request.prompt)
        blocks.filled(request, request.prompt)
        blocks.release(request, request.prompt, request.prompt)
    assert blocks.used == 0


def test_the_record_counts_hit_tokens() -> None:
    head = list(range(64))
    trace = hashed([[*head, 100, 101], [*head, 200, 201, 202], head], 16)
    record = lengthwise.replay(
        trace, cost="fixed", step_ms=1.0, enable_prefix_caching=True, block_size=16
    )
    admits = record.events[record.events.kind == "admit"]
    assert list(admits.tokens) == [0, 64, 48]  # one token at least is computed
    assert record.summary["prefix_hit_rate"] == pytest.approx((64 + 48) / (66 + 67 + 64))


def test_keys_of_blocks_that_a_hash_does_not_cover_whole() -> None:
    ids = np.array([7, 9])  # of 6 tokens each
    keys = block_keys(ids, 6, 11, 4)
    assert keys == [7 * 6 + 3, 9 * 6 + 1]  # the blocks that end at tokens 3 and 7
    assert block_keys(ids, 6, 30, 4) == [7 * 6 + 3, 9 * 6 + 1, 9 * 6 + 5]  # no more than are known


def test_a_hash_of_whole_blocks_is_the_key_of_all_of_them() -> None:
    ids = np.array([7, 9])
    assert block_keys(ids, 8, 16, 4) == [7, 9]
    trace = hashed([[1] * 16], 8)
    assert [blocks_per_hash(trace, size) for size in (1, 2, 3, 4, 8, 16)] == [8, 4, 1, 2, 1, 1]
    assert blocks_per_hash(Trace(np.zeros(1), np.ones(1, int), np.ones(1, int)), 4) == 1


def test_requests_come_in_order_with_what_the_trace_says() -> None:
    trace = Trace(np.array([0.0, 0.5]), np.array([3, 4]), np.array([1, 0]), np.array([2, -1]))
    first, second = requests_of(trace, 16, hashed=True)
    assert (first.index, first.arrival, first.prompt, first.output, first.priority) == (
        0, 0.0, 3, 1, 2,
    )  # fmt: skip
    assert (second.index, second.arrival, second.priority, second.hashes) == (1, 0.5, -1, ())
    assert repr(second) == "Request(1, prompt=4, output=0, computed=0, sampled=0, waiting)"


def test_hashes_are_left_out_where_nothing_is_cached() -> None:
    trace = hashed([[1] * 16], 8)
    assert next(requests_of(trace, 8, hashed=False)).hashes == ()
    assert list(next(requests_of(trace, 8, hashed=True)).hashes) == [0, 1]


def test_a_hit_belongs_to_the_request_that_asked() -> None:
    blocks = PrefixBlocks(4, 4)
    asked, other = Request(0, 0.0, 4, 1), Request(1, 0.0, 4, 1)
    blocks.hit(asked)
    with pytest.raises(RuntimeError, match=r"enter\(\) must follow hit\(\) of the same request"):
        blocks.enter(other, 0, 4)
