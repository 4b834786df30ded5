"""Prefix caching: the hit rate of a real trace, and runs of blocks against single blocks."""

from __future__ import annotations

import json
import random
from collections import OrderedDict

import pytest

from lengthwise.api import replay
from serving.prefix import PrefixBlocks
from serving.request import Request
from tests.shared import shared
from traces import load

BLOCK = 16
PER_HASH = 512 // BLOCK


@pytest.mark.shared
def test_hit_rate_with_unlimited_cache_is_that_of_the_files_hashes() -> None:
    path = shared("traces", "mooncake_conversation.jsonl")
    limit = 3000
    seen: dict[int, int] = {}  # hash: KV blocks of it that some earlier prompt filled
    hits = prompts = 0
    for line in path.read_text().splitlines()[:limit]:
        row = json.loads(line)
        full, usable = row["input_length"] // BLOCK, (row["input_length"] - 1) // BLOCK
        found = 0
        for unit, key in enumerate(row["hash_ids"]):
            known = min(seen.get(key, 0), usable - unit * PER_HASH)
            found += max(0, known)
            if known < PER_HASH:
                break
        for unit, key in enumerate(row["hash_ids"]):
            seen[key] = max(seen.get(key, 0), min(PER_HASH, full - unit * PER_HASH))
        hits += found * BLOCK
        prompts += row["input_length"]
    record = replay(
        load(path, limit=limit), enable_prefix_caching=True, num_gpu_blocks_override=20_000_000
    )
    assert record.summary["prefix_hit_rate"] == pytest.approx(hits / prompts, abs=1e-12)
    assert record.summary["completed"] == limit


class SingleBlocks:
    """The same cache said block by block: a free list in order, a dict from key to blocks."""

    def __init__(self, usable: int) -> None:
        self.queue: OrderedDict[int, tuple[int, int] | None] = OrderedDict(
            (i, None) for i in range(usable)
        )
        self.cached: dict[tuple[int, int], list[int]] = {}
        self.holders = dict.fromkeys(range(usable), 0)
        self.key: dict[int, tuple[int, int] | None] = dict.fromkeys(range(usable))

    def found(self, keys: list[tuple[int, int]], most: int) -> list[int]:
        blocks = []
        for key in keys[:most]:
            if key not in self.cached:
                break
            blocks.append(self.cached[key][0])
        return blocks

    def hold(self, blocks: list[int]) -> None:
        for block in blocks:
            self.queue.pop(block, None)
            self.holders[block] += 1

    def new(self) -> int:
        block, _ = self.queue.popitem(last=False)
        key = self.key[block]
        if key is not None:
            self.cached[key].remove(block)
            if not self.cached[key]:
                del self.cached[key]
        self.key[block] = None
        self.holders[block] = 1
        return block

    def fill(self, block: int, key: tuple[int, int]) -> None:
        if self.key[block] is None:
            self.key[block] = key
            self.cached.setdefault(key, []).append(block)

    def release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.holders[block] -= 1
            if self.holders[block]:
                continue
            self.queue[block] = None
            if self.key[block] is None:
                self.queue.move_to_end(block, last=False)


@pytest.mark.parametrize("per_hash", [1, 4])
@pytest.mark.parametrize("seed", range(12))
def test_runs_of_blocks_are_blocks(per_hash: int, seed: int) -> None:
    """Random lives of requests with shared heads, cut anywhere, in a cache that evicts."""
    rng = random.Random(seed)
    size, usable = 2, 40
    runs, single = PrefixBlocks(usable, size, per_hash), SingleBlocks(usable)
    running: list[tuple[Request, list[int]]] = []
    for index in range(400):
        prompt, family = rng.randrange(1, 40), rng.randrange(4)
        shared_units = rng.randrange(6)
        units = -(-prompt // (size * per_hash))
        ids = [
            family * 100 + u if u < shared_units else 10_000 + index * 100 + u for u in range(units)
        ]
        request = Request(index, 0.0, prompt, 5, 0, ids)
        full = prompt // size
        keys = [(ids[i // per_hash], i % per_hash) for i in range(full)]
        blocks = single.found(keys, (prompt - 1) // size)
        hits, idle = runs.hit(request)
        assert hits == len(blocks)
        assert idle == sum(not single.holders[b] for b in blocks)
        upto = rng.randrange(hits * size + 1, prompt + 1)
        need = -(-upto // size)
        while running and need - hits + idle > runs.free:
            gone, held = running.pop(rng.randrange(len(running)))
            runs.release(gone, gone.computed, gone.computed)
            for i, block in enumerate(held[: gone.computed // size]):
                single.fill(block, (gone.hashes[i // per_hash], i % per_hash))
            single.release(held)
            hits, idle = runs.hit(request)
            blocks = single.found(keys, (prompt - 1) // size)
            assert hits == len(blocks)
            need = -(-max(upto, hits * size + 1) // size)
            upto = max(upto, hits * size + 1)
        runs.enter(request, hits, upto)
        runs.filled(request, upto)
        single.hold(blocks)
        blocks = blocks + [single.new() for _ in range(need - len(blocks))]
        for i in range(upto // size):
            single.fill(blocks[i], keys[i])
        request.computed = upto
        running.append((request, blocks))
        assert runs.free == len(single.queue)
