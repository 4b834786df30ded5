"""Groupings, queues, paddings and batches one by one, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.drain import Activations, Batch, Drain, Footprint
from policies.grouping import Bucketing, Fcfs, TokenBudget
from policies.layout import PadToBucket, PadToLimit, PadToLongest
from serving.blocks import Blocks
from serving.queue import ORDERS, Buckets, Fifo, Queue, Ranked
from serving.recorder import Recorder
from serving.request import Request, Status
from serving.step import Padded, Step, Wait


class Desk:
    """A room with seats, that takes prompts up to a length."""

    def __init__(self, seats: int, longest: int = 10**9) -> None:
        self._seats, self._longest = seats, longest
        self.requests: list[Request] = []

    @property
    def seats(self) -> int:
        return self._seats - len(self.requests)

    @property
    def taken(self) -> int:
        return len(self.requests)

    def fits(self, request: Request) -> bool:
        return self.seats > 0 and request.prompt <= self._longest

    def slots(self, request: Request) -> int:
        prompts = [r.prompt for r in (*self.requests, request)]
        return len(prompts) * max(prompts)

    def take(self, request: Request) -> None:
        request.status = Status.RUNNING
        self.requests.append(request)

    def prompts(self) -> list[int]:
        return [r.prompt for r in self.requests]


def requests(*prompts: int, every: float = 0.0) -> list[Request]:
    return [Request(i, i * every, prompt, 1) for i, prompt in enumerate(prompts)]


def filled(queue: Queue, items: Sequence[Request]) -> Queue:
    for request in items:
        queue.push(request)
    return queue


def buckets(*prompts: int, every: float = 0.0, bounds: tuple[int, ...] = (10, 20)) -> Buckets:
    queue = Buckets(bounds, Fifo)
    filled(queue, requests(*prompts, every=every))
    return queue


# Groupings


def test_fcfs_takes_from_the_head_until_one_does_not_fit() -> None:
    queue, room = filled(Fifo(), requests(3, 9, 2, 5)), Desk(3, longest=8)
    assert Fcfs().form(queue, room, 0.0) is None
    assert room.prompts() == [3]
    assert len(queue) == 3


def test_fcfs_stops_at_the_seats() -> None:
    queue, room = filled(Fifo(), requests(1, 2, 3)), Desk(2)
    Fcfs().form(queue, room, 0.0)
    assert room.prompts() == [1, 2]


@pytest.mark.parametrize(
    ("budget", "prompts", "taken"),
    [
        (8192, [512] * 40, 16),
        (8192, [2048] * 40, 4),
        (8192, [8192] * 3, 1),
        (4096, [64] * 70, 64),
        (100, [500, 1], 1),  # an over-long one goes alone
        (100, [10, 500], 1),  # and not behind others
        (100, [10, 30, 20, 40], 3),  # padding counts: 3 rows of 30, the fourth makes 160
    ],
)
def test_a_token_budget_counts_computed_slots(budget: int, prompts: list[int], taken: int) -> None:
    queue, room = filled(Fifo(), requests(*prompts)), Desk(100)
    assert TokenBudget(budget).form(queue, room, 0.0) is None
    assert room.prompts() == prompts[:taken]


def test_a_full_bucket_goes_at_once_and_alone() -> None:
    queue, room = buckets(5, 15, 16, 25, 6), Desk(2)
    assert Bucketing((10, 20), 1.0).form(queue, room, 0.5) == Wait(until=1.0)
    assert room.prompts() == [5, 6]
    assert len(queue) == 3


def test_without_a_full_bucket_it_waits_for_the_oldest_to_be_due() -> None:
    queue, room = buckets(15, 5, 25, every=0.1), Desk(2)
    grouping = Bucketing((10, 20), 1.0)
    assert grouping.form(queue, room, 0.9) == Wait(until=1.0)
    assert not room.taken
    assert grouping.form(queue, room, 1.0) is None
    assert room.prompts() == [15]
    assert grouping.form(queue, Desk(2), 1.0) == Wait(until=1.1)


def test_the_due_bucket_goes_before_a_full_one() -> None:
    queue, room = buckets(25, 5, 6, every=0.1), Desk(2)
    Bucketing((10, 20), 1.0).form(queue, room, 1.0)
    assert room.prompts() == [25]


def test_a_full_bucket_that_does_not_fit_still_asks_to_be_woken_for_the_oldest() -> None:
    queue, room = buckets(5, 15, 16), Desk(2, longest=10)
    assert Bucketing((10, 20), 1.0).form(queue, room, 0.0) == Wait(until=1.0)
    assert not room.taken


def test_bucketing_asks_for_nothing_without_requests_or_seats() -> None:
    grouping = Bucketing((10, 20), 1.0)
    assert grouping.form(buckets(), Desk(2), 0.0) is None
    assert grouping.form(buckets(5), Desk(0), 0.0) is None


def test_bucketing_needs_buckets() -> None:
    with pytest.raises(TypeError, match="needs its requests in Buckets"):
        Bucketing((10,), 1.0).form(Fifo(), Desk(1), 0.0)


# Queues


def test_first_come_first_served_but_preempted_ones_come_first() -> None:
    a, b, c = requests(1, 2, 3)
    queue = filled(Fifo(), [a, b])
    queue.push_front(c)
    assert len(queue) == 3
    assert [queue.pop() for _ in range(3)] == [c, a, b]
    assert queue.peek() is None


@pytest.mark.parametrize(
    ("order", "expected"),
    [("fcfs", [0, 1, 2, 3]), ("priority", [3, 1, 2, 0]), ("shortest", [2, 3, 1, 0])],
)
def test_orders(order: str, expected: list[int]) -> None:
    items = [
        Request(0, 0.0, 9, 1, 5),
        Request(1, 0.1, 9, 1, 1),
        Request(2, 0.2, 3, 1, 1),
        Request(3, 0.2, 3, 1, 0),
    ]
    items[0].prompt = 10
    queue = filled(ORDERS[order](), items)
    assert [queue.pop().index for _ in items] == expected


def test_a_preempted_request_goes_back_to_its_rank_and_can_be_taken_out() -> None:
    a, b, c = requests(1, 2, 3)
    queue = filled(Ranked(lambda r: r.prompt), [a, c])
    queue.push_front(b)
    queue.remove(a)
    assert len(queue) == 2
    assert queue.peek() is b
    assert [queue.pop(), queue.pop()] == [b, c]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60), st.randoms())
def test_a_ranked_queue_is_a_sorted_list(arriving: list[tuple[int, int]], chance: Random) -> None:
    """Arrivals in order, one popped, put back or taken out now and then, against sorting all."""
    queue, waiting, out = Ranked(lambda r: r.priority), list[Request](), list[Request]()
    for index, (priority, moment) in enumerate(sorted(arriving, key=lambda item: item[1])):
        waiting.append(Request(index, float(moment), 1, 1, priority))
        queue.push(waiting[-1])
        waiting.sort(key=lambda r: (r.priority, r.arrival, r.index))
        assert queue.peek() is waiting[0]
        assert len(queue) == len(waiting)
        if chance.random() < 0.5:
            out.append(waiting.pop(0))
            assert queue.pop() is out[-1]
        if out and chance.random() < 0.3:
            waiting.append(out.pop(chance.randrange(len(out))))
            queue.push_front(waiting[-1])
        if waiting and chance.random() < 0.2:
            queue.remove(waiting.pop(chance.randrange(len(waiting))))
    waiting.sort(key=lambda r: (r.priority, r.arrival, r.index))
    assert [queue.pop() for _ in waiting] == waiting
    assert queue.peek() is None


def test_buckets_split_by_prompt_and_a_bound_belongs_to_its_bucket() -> None:
    queue = buckets(1, 10, 11, 20, 21, 99)
    assert [len(bucket) for bucket in queue.buckets] == [2, 2, 2]
    assert len(queue) == 6


def test_buckets_are_a_queue_led_by_the_oldest() -> None:
    queue = buckets(15, 5, 16, every=1.0)
    order = []
    while (request := queue.peek()) is not None:
        assert queue.pop() is request
        request.status = Status.RUNNING
        order.append(request.prompt)
    assert order == [15, 5, 16]
    assert queue.oldest() is None
    with pytest.raises(IndexError, match="empty queue"):
        queue.pop()


def test_buckets_take_back_and_give_out() -> None:
    queue = buckets(15, 5, every=1.0)
    first = queue.pop()
    first.status = Status.RUNNING
    assert queue.oldest() is not first
    first.status = Status.WAITING
    queue.push_front(first)
    assert queue.oldest() is first
    queue.remove(first)
    first.status = Status.FINISHED
    assert len(queue) == 1
    assert queue.pop().prompt == 5


# Paddings


@pytest.mark.parametrize(
    ("longest", "limit", "bucket", "dynamic"),
    [(1, 64, 8, 1), (8, 64, 8, 8), (9, 64, 16, 9), (16, 64, 16, 16), (17, 64, 17, 17)],
)
def test_widths(longest: int, limit: int, bucket: int, dynamic: int) -> None:
    assert PadToLimit(64).width(longest) == limit
    assert PadToBucket((8, 16)).width(longest) == bucket
    assert PadToLongest().width(longest) == dynamic


# Batches that drain


def drain(**changes: object) -> Drain:
    arguments: dict[str, object] = {
        "max_num_seqs": 4,
        "padding": PadToLongest(),
        "blocks": Blocks(None, 4),
        "queue": Fifo(),
        "recorder": Recorder(),
    }
    return Drain(**{**arguments, **changes})


def run(planner: Drain, items: Sequence[Request]) -> list[Step]:
    for request in items:
        planner.add(request)
    steps = []
    while isinstance(step := planner.plan(0.0), Step):
        steps.append(step)
        planner.complete(step)
    return steps


@pytest.mark.parametrize("padding", [None, PadToLongest()])
def test_those_who_finish_together_are_named_in_the_order_of_their_rows(padding: object) -> None:
    planner = drain(padding=padding)
    outputs = [3, 1, 3, 1]
    for i, output in enumerate(outputs):
        planner.add(Request(i, 0.0, 5, output))
    finished = []
    while isinstance(step := planner.plan(0.0), Step):
        finished.append([r.index for r in planner.complete(step)])
    assert finished == [[1, 3], [], [0, 2]]


def test_live_rows_fall_as_outputs_end() -> None:
    def items() -> list[Request]:
        return [Request(i, 0.0, 5, n) for i, n in enumerate((1, 2, 4, 0))]

    padded = items()
    steps = run(drain(), padded)
    assert [step.running for step in steps] == [4, 2, 1, 1]
    assert [step.features.decode_rows for step in steps] == [0, 4, 4, 4]
    assert all(request.status is Status.FINISHED for request in padded)
    packed = run(drain(padding=None), items())
    assert [step.features.decode_rows for step in packed] == [0, 2, 1, 1]


def test_rows_are_fixed_until_the_drain_and_members_are_those_that_emit() -> None:
    planner = drain()
    a, b = Request(0, 0.0, 5, 2), Request(1, 0.0, 3, 4)
    planner.add(a)
    planner.add(b)
    seen = []
    while isinstance(step := planner.plan(0.0), Step):
        assert step.layout == Padded(5, (a, b))
        seen.append(list(step.decodes.members()))
        planner.complete(step)
    assert seen == [[], [(a, 5), (b, 3)], [(b, 4)], [(b, 5)]]


def test_a_batch_is_smaller_where_the_memory_is() -> None:
    items = [Request(i, 0.0, 8, 8) for i in range(4)]  # 4 blocks of 4 tokens each
    steps = run(drain(blocks=Blocks(9, 4)), items)
    assert [len(step.prefill) for step in steps if step.prefill] == [2, 2]
    assert steps[0].blocks_used == 8


def test_activations_share_the_memory() -> None:
    items = [Request(i, 0.0, 8, 8) for i in range(4)]
    space = Activations(free_bytes=100, block_bytes=10, slot_bytes=1)  # 48 a row
    steps = run(drain(blocks=Blocks(10, 4), activations=space), items)
    assert [len(step.prefill) for step in steps if step.prefill] == [2, 2]
    assert drain(activations=space).holds(Footprint(10, 0))
    assert not drain(activations=space).holds(Footprint(10, 1))


@pytest.mark.parametrize(
    ("padding", "sentence"),
    [
        (PadToLimit(40), "one row padded to 40 with 4 outputs needs 11 KV blocks and 40 slots, "),
        (None, "one row of 30 tokens with 4 outputs needs 9 KV blocks and 30 slots, "),
    ],
)
def test_one_row_too_many_is_refused_with_its_size(padding: object, sentence: str) -> None:
    planner = drain(padding=padding, blocks=Blocks(8, 4))
    reason = planner.refusal(Request(0, 0.0, 30, 4))
    assert reason == sentence + "over the memory (8 blocks)"
    assert drain(padding=padding, blocks=Blocks(11, 4)).refusal(Request(0, 0.0, 30, 4)) is None


def test_steps_end_in_order() -> None:
    planner = drain()
    planner.add(Request(0, 0.0, 5, 3))
    first, second = planner.plan(0.0), planner.plan(0.0)
    assert isinstance(first, Step)
    assert isinstance(second, Step)
    with pytest.raises(RuntimeError, match="step 0 ends before step 1"):
        planner.complete(second)


def test_a_batch_forgets_nobody() -> None:
    rows = [Request(i, 0.0, 4, n) for i, n in enumerate((2, 5, 2, 9))]
    batch = Batch(rows, 4, 1)
    ended = []
    while not batch.over:
        ended += batch.emit(batch.until_end())
    assert [r.index for r in ended] == [0, 2, 1, 3]
    assert batch.live == batch.context == 0
    assert [r.sampled for r in rows] == [2, 5, 2, 9]


def test_whoever_holds_pages_is_told_when_a_row_is_given_up() -> None:
    class Pages:
        def __init__(self) -> None:
            self.freed: list[tuple[int, int]] = []

        def released(self, request: Request, cached: int) -> None:
            self.freed.append((request.index, cached))

        def evicted(self, block: object) -> None: ...

    blocks, pages = Blocks(20, 4), Pages()
    blocks.listener = pages
    run(drain(blocks=blocks), [Request(i, 0.0, 5, n) for i, n in enumerate((3, 1))])
    assert pages.freed == [(0, 0), (1, 0)]
    assert blocks.used == 0
