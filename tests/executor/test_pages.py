"""Pages follow the planner's blocks: nobody shares what is not shared, nothing leaks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.pages import Pager
from serving.prefix import Run
from serving.request import Request
from serving.step import Work

SIZE = 4


def block(key: int) -> Run:
    return Run(key, 0, 1, 1)


def request(index: int, prompt: int = 100) -> Request:
    return Request(index, 0.0, prompt, 10)


def pages(pager: Pager, r: Request) -> list[int]:
    row = int(pager.rows(np.array([r.index]))[0])
    return pager.tables[row, : pager.held[row]].tolist()


def decode(pager: Pager, *rows: tuple[Request, int]) -> None:
    indices = np.array([r.index for r, _ in rows])
    pager.grow(pager.rows(indices), np.array([context for _, context in rows], np.int64))


@given(st.data())
def test_whatever_happens_every_page_has_one_owner(data):
    """Against a plain dict of lists; requests come, grow by chunks and decodes, and go."""
    total = data.draw(st.integers(8, 60))
    pager = Pager(total, SIZE, 200)
    length: dict[int, int] = {}
    live: dict[int, Request] = {}
    seen: dict[int, list[int]] = {}
    for index in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["chunk", "decode", "release"]))
        if action == "chunk":
            r = live.get(data.draw(st.integers(0, 5)))
            r = r or request(index + 6 * data.draw(st.integers(0, 30)))
            start, tokens = length.get(r.index, 0), data.draw(st.integers(1, 13))
            before = len(seen.get(r.index, ()))
            if -(-(start + tokens) // SIZE) - before > pager.free:
                continue
            pager.place(Work(r, start, tokens, False))
            live[r.index], length[r.index] = r, start + tokens
        elif action == "decode" and live:
            rows = [(r, length[i]) for i, r in live.items()]
            if sum(n % SIZE == 0 for _, n in rows) > pager.free:
                continue
            decode(pager, *rows)
            length = {i: n + 1 for i, n in length.items()}
        elif action == "release" and live:
            index = data.draw(st.sampled_from(sorted(live)))
            pager.released(live.pop(index))
            del length[index], seen[index]
        now = {i: pages(pager, r) for i, r in live.items()}
        for i, held in now.items():
            assert len(held) == -(-length[i] // SIZE)
            assert held[: len(seen.get(i, ()))] == seen.get(i, [])  # what is written stays put
        owned = [p for held in now.values() for p in held]
        assert len(set(owned)) == len(owned)
        assert all(0 <= p < total for p in owned)
        assert pager.free == total - len(owned)
        seen = now


def test_a_hit_reuses_the_page_until_it_is_evicted():
    pager = Pager(10, SIZE, 100)
    first, second = request(0), request(1)
    shared = [block(1), block(2)]
    first.cached = list(shared)
    pager.place(Work(first, 0, 10, True))
    assert [b.page for b in shared] == pages(pager, first)[:2]
    second.cached = list(shared)
    pager.place(Work(second, 8, 3, True))
    assert pages(pager, second)[:2] == pages(pager, first)[:2]
    assert pages(pager, second)[2] != pages(pager, first)[2]
    assert pager.free == 6
    pager.released(first, 2)
    assert pager.free == 7  # its third page; the shared ones stay
    pager.released(second, 2)
    assert pager.free == 8
    for each in shared:
        pager.evicted(each)
        assert each.page == -1
    assert pager.free == 10


def test_a_block_that_fills_later_keeps_the_page_it_began_on():
    pager = Pager(10, SIZE, 100)
    r = request(0)
    pager.place(Work(r, 0, 6, False))
    before = pages(pager, r)
    r.cached = [block(1), block(2)]
    pager.place(Work(r, 6, 3, True))
    assert [b.page for b in r.cached] == before
    assert pages(pager, r)[:2] == before


def test_blocks_of_generated_tokens_keep_their_pages_when_given_up():
    pager = Pager(10, SIZE, 100)
    r = request(0, prompt=4)
    r.cached = [block(1)]
    pager.place(Work(r, 0, 4, True))
    for context in range(4, 9):
        decode(pager, (r, context))
    held = pages(pager, r)
    r.cached.append(block(~1))  # the planner names the full second block as it gives up
    pager.released(r, 2)
    assert [b.page for b in r.cached] == held[:2]
    assert pager.free == 8


def test_a_block_that_was_planned_but_never_computed_cannot_be_hit():
    pager = Pager(10, SIZE, 100)
    victim, late = request(0), request(1)
    pager.place(Work(victim, 0, 4, False))
    never = block(2)
    victim.cached = [block(1), never]  # its next chunk was planned, and then taken back
    pager.released(victim, 2)
    assert never.page == -1
    assert pager.free == 9
    late.cached = list(victim.cached)
    with pytest.raises(RuntimeError, match="block 1 of its prompt, which nobody has computed"):
        pager.place(Work(late, 8, 2, True))


def test_two_requests_that_fill_the_same_block_in_one_step():
    pager = Pager(10, SIZE, 100)
    a, b = request(0), request(1)
    both = block(1)
    a.cached = [both]
    b.cached = [both]
    pager.place(Work(a, 0, 6, True))
    pager.place(Work(b, 4, 2, True))  # hits what `a` computes in this very step
    assert pages(pager, a)[0] == pages(pager, b)[0] == both.page


def test_more_pages_than_there_are_is_an_error():
    pager = Pager(2, SIZE, 100)
    with pytest.raises(RuntimeError, match="more KV pages than it counted"):
        pager.place(Work(request(0), 0, 9, False))
    pager.released(request(5))  # never part of a step: nothing to do
    assert pager.free == 0


def test_rows_and_indices_grow():
    pager = Pager(200, SIZE, 8)
    many = [request(i * 50, prompt=4) for i in range(100)]
    for r in many:
        pager.place(Work(r, 0, 4, True))
    assert len({p for r in many for p in pages(pager, r)}) == 100
    decode(pager, *((r, 4) for r in many))
    assert pager.free == 0
    for r in many:
        pager.released(r)
    assert pager.free == 200
