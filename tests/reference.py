"""The loop told naively: request by request, token by token, with nothing grouped or remembered.

It follows the words of the rules and shares no code with what it checks: requests are plain
objects, queues are lists that are sorted whenever somebody looks, KV blocks are objects in a list,
and every sum over a step is added up one token at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from policies.compose import Point, Settings
from serving.step import Features
from sim.cost import CostModel

CAPTURED = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]


@dataclass(eq=False)
class Block:
    """A KV block; with a key, its tokens can be found."""

    key: object = None
    holders: int = 0


@dataclass(eq=False)
class Req:
    """A request and all that happens to it."""

    index: int
    arrival: float
    prompt: int
    output: int
    priority: int = 0
    keys: Sequence[int] = ()
    done: int = 0  # outputs that are known
    coming: int = 0  # outputs of steps that have not ended
    computed: int = 0
    target: int = 0  # tokens that were known when it was last admitted
    blocks: list[Block] = field(default_factory=list)
    row: int = -1
    scheduled: float | None = None
    first: float | None = None
    finished: float | None = None
    waited: float = 0.0
    preempted: int = 0
    refused: bool = False


@dataclass(eq=False)
class Step:
    """One forward pass, and what the end of it brings."""

    id: int
    chunks: list[tuple[Req, int, int, bool]] = field(default_factory=list)  # start, tokens, samples
    decodes: list[tuple[Req, int]] = field(default_factory=list)  # context
    outputs: list[tuple[Req, int]] = field(default_factory=list)  # how often preempted until then
    features: Features = field(default_factory=Features)
    preempted: int = 0
    waiting: int = 0
    running: int = 0
    used: int = 0
    start: float = 0.0
    end: float = 0.0


class Pool:
    """KV blocks, the free ones in the order in which they will be taken."""

    def __init__(self, count: int, size: int, caching: bool) -> None:
        self.count, self.size, self.caching = count, size, caching
        self.free = [Block() for _ in range(count)]
        self.found: dict[object, list[Block]] = {}  # copies of a block, oldest first

    def blocks(self, tokens: int) -> int:
        count = 0
        while count * self.size < tokens:
            count += 1
        return count

    def hits(self, r: Req) -> list[Block]:
        hits: list[Block] = []
        while (len(hits) + 1) * self.size <= r.prompt + r.done - 1:
            copies = self.found.get(self.key(r, len(hits)))
            if not copies:
                break
            hits.append(copies[0])
        return hits

    def key(self, r: Req, i: int) -> object:
        return r.keys[i] if i < len(r.keys) else ("of", r.index, i)

    def hold(self, r: Req, hits: Iterable[Block]) -> None:
        for block in hits:
            if not block.holders:
                self.free.remove(block)
            block.holders += 1
            r.blocks.append(block)

    def grow(self, r: Req, tokens: int) -> None:
        while len(r.blocks) < self.blocks(tokens):
            block = self.free.pop(0)
            if block.key is not None:
                self.found[block.key].remove(block)
            block.key, block.holders = None, 1
            r.blocks.append(block)

    def cache(self, r: Req, tokens: int) -> None:
        for i in range(tokens // self.size if self.caching else 0):
            if r.blocks[i].key is None:
                r.blocks[i].key = self.key(r, i)
                self.found.setdefault(r.blocks[i].key, []).append(r.blocks[i])

    def give_up(self, r: Req) -> None:
        for block in reversed(r.blocks):
            block.holders -= 1
            if not block.holders and block.key is None:
                self.free.insert(0, block)
            elif not block.holders:
                self.free.append(block)
        r.blocks = []


def in_order(waiting: Iterable[Req], order: str) -> list[Req]:
    keys: dict[str, Callable[[Req], Any]] = {
        "fcfs": lambda r: 0,
        "priority": lambda r: (r.priority, r.arrival, r.index),
        "shortest": lambda r: (r.prompt, r.arrival, r.index),
    }
    return sorted(waiting, key=keys[order])


class Planner:
    """What both lifecycles share: who waits, what is written down, and how a batch forms."""

    def __init__(self, point: Point, s: Settings, budget: int | None, blocks: int) -> None:
        self.point, self.s = point, s
        self.budget = budget or 0
        self.pool = Pool(blocks, s.block_size, s.enable_prefix_caching)
        self.waiting: list[Req] = []  # in order of arrival, preempted ones in front
        self.events: list[tuple[int, int, str, int, int]] = []
        self.steps = 0

    def log(self, step: Step, r: Req, kind: str, tokens: int) -> None:
        self.events.append((step.id, r.index, kind, tokens, r.row))

    def bucket(self, r: Req) -> int:
        return sum(r.prompt > bound for bound in self.s.bucket_bounds)

    def form(
        self,
        now: float,
        seats: int,
        begun: Callable[[], bool],
        fits: Callable[[Req], bool],
        slots: Callable[[Req], int],
        take: Callable[[Req], None],
    ) -> float | None:
        """Moves requests from `waiting` by `take`; returns until when some are held back."""
        due, chosen = None, list(self.waiting)
        if self.point.grouping == "bucketing":
            if not chosen or not seats:
                return None
            oldest = min(chosen, key=lambda r: (r.arrival, r.index))
            due = oldest.arrival + self.s.max_wait
            by_bucket = [
                [r for r in chosen if self.bucket(r) == b]
                for b in range(len(self.s.bucket_bounds) + 1)
            ]
            ready = [b for b in by_bucket if len(b) >= seats]
            if now >= due:
                ready = [by_bucket[self.bucket(oldest)]]
            if not ready:
                return due
            chosen = ready[0]
        for r in in_order(chosen, self.s.order):
            over = self.point.grouping == "token-budget" and begun() and slots(r) > self.budget
            if over or not fits(r):
                break
            self.waiting.remove(r)
            take(r)
        return None


class Drain(Planner):
    """A batch forms, runs until its longest request ends, and only then the next."""

    batch: tuple[Req, ...] = ()
    generated = 0

    def width(self, rows: Sequence[Req]) -> int:
        longest = max(r.prompt for r in rows)
        if self.point.layout == "limit":
            return max(longest, self.s.max_model_len)
        if self.point.layout == "bucket":
            return min([b for b in self.s.bucket_bounds if b >= longest], default=longest)
        return longest

    def memory(self, rows: Sequence[Req]) -> tuple[int, int]:
        """KV blocks and prompt slots of a batch."""
        if self.point.layout == "packed":
            blocks = sum(self.pool.blocks(r.prompt + r.output) for r in rows)
            return blocks, sum(r.prompt for r in rows)
        width, output = self.width(rows), max(r.output for r in rows)
        return len(rows) * self.pool.blocks(width + output), len(rows) * width

    def holds(self, rows: Sequence[Req]) -> bool:
        blocks, slots = self.memory(rows)
        if self.s.usable_blocks is not None and blocks > self.s.usable_blocks:
            return False
        if self.s.activations is None:
            return True
        free, block_bytes, slot_bytes = self.s.activations
        return blocks * block_bytes + slots * slot_bytes <= free

    def refuses(self, r: Req) -> bool:
        return not self.holds([r])

    def plan(self, now: float) -> Step | float | None:
        step = Step(self.steps)
        if not self.batch:
            rows: list[Req] = []
            held = self.form(
                now,
                self.s.max_num_seqs,
                begun=lambda: bool(rows),
                fits=lambda r: len(rows) < self.s.max_num_seqs and self.holds([*rows, r]),
                slots=lambda r: self.memory([*rows, r])[1],
                take=rows.append,
            )
            if not rows:
                return held
            self.batch, self.generated = tuple(rows), 1
            self.prefill(step)
        elif all(r.done + r.coming >= r.output for r in self.batch):
            return None
        else:
            self.decode(step)
            self.generated += 1
        self.steps += 1
        for r in (r for r, *_ in (*step.chunks, *step.decodes)):
            step.outputs.append((r, 0))
            r.coming += r.output > 0
        step.waiting, step.running = len(self.waiting), len(step.outputs)
        step.used = self.memory(self.batch)[0]
        return step

    def prefill(self, step: Step) -> None:
        for i, r in enumerate(self.batch):
            r.row = -1 if self.point.layout == "packed" else i
            step.chunks.append((r, 0, r.prompt, r.output > 0))
            self.log(step, r, "admit", 0)
            self.log(step, r, "chunk", r.prompt)
            if r.output:
                self.log(step, r, "first", 1)
        step.features = packed_features(step)
        if self.point.layout != "packed":
            rows, width = len(self.batch), self.width(self.batch)
            step.features = step.features._replace(
                prefill_slots=rows * width,
                prefill_computed_pairs=rows * pairs(0, width),
                prefill_kv=rows * width,
                sampled_rows=rows,
            )

    def decode(self, step: Step) -> None:
        for r in self.batch:
            if r.done + r.coming < r.output:
                step.decodes.append((r, r.prompt + self.generated - 1))
        step.features = packed_features(step)
        if self.point.layout != "packed":
            rows, width = len(self.batch), self.width(self.batch)
            step.features = step.features._replace(
                decode_slots=rows,
                decode_rows=rows,
                sampled_rows=rows,
                decode_computed_pairs=sum(width + self.generated for _ in self.batch),
                decode_longest=width + self.generated,
            )

    def complete(self, step: Step) -> list[Req]:
        ended = []
        for r, _ in step.outputs:
            r.done += r.output > 0
            r.coming -= r.output > 0
            if r.done == r.output:
                ended.append(r)
                self.log(step, r, "finish", r.output)
        if all(r.done == r.output for r in self.batch):
            for r in self.batch:
                self.log(step, r, "leave", self.generated - max(1, r.output))
            self.batch = ()
        return ended


class Continuous(Planner):
    """Every step is planned anew: running requests in order of admission, then waiting ones."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.running: list[Req] = []
        self.news = False  # somebody has finished since the last plan

    def refuses(self, r: Req) -> bool:
        return self.pool.blocks(r.prompt + max(0, r.output - 1)) > self.pool.count

    def wants(self, r: Req) -> int:
        """Tokens it still has to compute; none when its last one is on its way."""
        if r.computed >= r.target and r.done + r.coming >= r.output:
            return 0
        return r.prompt + r.done + r.coming - r.computed

    def plan(self, now: float) -> Step | float | None:
        s, step, served = self.s, Step(self.steps), dict[Req, int]()
        left = self.budget
        alone = len(self.running) + len(self.waiting) == 1
        cap = self.budget if alone else s.long_prefill_token_threshold or self.budget
        at = 0
        while at < len(self.running) and left > 0:
            r = self.running[at]
            n = min(self.wants(r), cap, left)
            lost = False
            while self.pool.blocks(r.computed + n) - len(r.blocks) > len(self.pool.free):
                victim = self.running[-1]
                if s.order == "priority":
                    victim = max(self.running, key=lambda r: (r.priority, r.arrival))
                left += served.pop(victim, 0)
                at -= self.running.index(victim) < at
                self.preempt(victim, step)
                lost = victim is r
                if lost:
                    break
            if lost:
                break
            if n:
                left -= n
                served[r] = n
                self.schedule(r, n)
            at += 1
        for r, n in served.items():
            if r.computed < r.target:
                self.log_chunk(step, r, n)
        passed = [r for r in self.running if r.computed >= r.target and self.wants(r)]
        passed = [r for r in passed if r not in served]
        held = None
        if not step.preempted:
            held = self.admit(now, step, served, left, cap)
        idle = not (served or passed or step.preempted)
        if idle and not (s.async_scheduling and (self.running or self.news)):
            return held
        self.news = False
        self.steps += 1
        self.account(step, served, passed)
        return step

    def admit(
        self, now: float, step: Step, served: dict[Req, int], left: int, cap: int
    ) -> float | None:
        s, size, find = self.s, self.s.block_size, self.pool.hits
        prompts = {r: n for r, n in served.items() if r.computed < r.target}
        keep = 0 if s.usable_blocks is None else int(s.watermark * (self.pool.count + 1))

        def tokens(r: Req) -> int:
            return min(r.prompt + r.done - size * len(find(r)), cap)

        def fits(r: Req) -> bool:
            if len(self.running) >= s.max_num_seqs or left <= 0:
                return False
            if tokens(r) > left and self.point.lifecycle == "continuous":
                return False
            idle = sum(not block.holders for block in find(r))
            need = self.pool.blocks(r.prompt + r.done) - len(find(r)) + idle
            return need + (keep if self.running else 0) <= len(self.pool.free)

        def slots(r: Req) -> int:
            return sum(prompts.values()) + min(tokens(r), left)

        def take(r: Req) -> None:
            nonlocal left
            n, hits = min(tokens(r), left), find(r)
            r.target, r.computed = r.prompt + r.done, len(hits) * size
            self.log(step, r, "admit", r.computed)
            self.running.append(r)
            self.pool.hold(r, hits)
            self.schedule(r, n)
            self.log_chunk(step, r, n)
            served[r] = prompts[r] = n
            left -= n

        seats = s.max_num_seqs - len(self.running)
        return self.form(now, seats, lambda: bool(prompts), fits, slots, take)

    def log_chunk(self, step: Step, r: Req, n: int) -> None:
        self.log(step, r, "chunk", n)
        if r.computed + n >= r.target and r.output > 0:
            self.log(step, r, "first", 1)

    def schedule(self, r: Req, n: int) -> None:
        """Its blocks are taken, and full ones of known tokens can be found from now on."""
        self.pool.grow(r, r.computed + n)
        self.pool.cache(r, min(r.computed + n, r.prompt + r.done))

    def preempt(self, r: Req, step: Step) -> None:
        self.log(step, r, "preempt", r.computed)
        step.preempted += 1
        self.running.remove(r)
        self.pool.give_up(r)
        r.computed = r.coming = 0
        r.preempted += 1
        self.waiting.insert(0, r)

    def account(self, step: Step, served: dict[Req, int], passed: list[Req]) -> None:
        for r, n in served.items():
            start = r.computed
            r.computed += n
            samples = r.computed >= r.target and r.output > 0
            if start < r.target:
                step.chunks.append((r, start, n, samples))
            else:
                step.decodes.append((r, start))
            if r.computed >= r.target:
                step.outputs.append((r, r.preempted))
                r.coming += samples
        for r in passed:
            self.log(step, r, "skip", 0)
        step.features = packed_features(step)
        step.waiting, step.running = len(self.waiting), len(self.running)
        step.used = self.pool.count - len(self.pool.free)

    def complete(self, step: Step) -> list[Req]:
        ended = []
        for r, life in step.outputs:
            r.done += r.output > 0
            if r.preempted == life:
                r.coming -= r.output > 0
                self.pool.cache(r, r.computed - r.coming)
            if r.done == r.output:
                ended.append(r)
                self.log(step, r, "finish", r.output)
                (self.running if r.preempted == life else self.waiting).remove(r)
                self.pool.give_up(r)
        self.news |= bool(ended)
        return ended


def pairs(context: int, tokens: int) -> int:
    """Query-key pairs of a chunk: each token sees all before it and itself."""
    return sum(context + i + 1 for i in range(tokens))


def packed_features(step: Step) -> Features:
    chunks, decodes = step.chunks, step.decodes
    prefill = sum(pairs(start, n) for _, start, n, _ in chunks)
    decode = sum(pairs(context, 1) for _, context in decodes)
    return Features(
        prefill_tokens=sum(n for _, _, n, _ in chunks),
        decode_tokens=len(decodes),
        prefill_slots=sum(n for _, _, n, _ in chunks),
        decode_slots=len(decodes),
        prefill_useful_pairs=prefill,
        prefill_computed_pairs=prefill,
        decode_useful_pairs=decode,
        decode_computed_pairs=decode,
        prefill_rows=len(chunks),
        decode_rows=len(decodes),
        sampled_rows=sum(samples for *_, samples in chunks) + len(decodes),
        prefill_kv=sum(start + n for _, start, n, _ in chunks),
        decode_longest=max((pairs(context, 1) for _, context in decodes), default=0),
    )


@dataclass
class Result:
    """The whole record."""

    requests: list[Req]
    steps: list[Step]
    events: list[tuple[int, int, str, int, int]]


def simulate(
    requests: Sequence[Req],
    point: Point,
    s: Settings,
    budget: int | None,
    cost: CostModel,
    cuda_graphs: bool = False,
) -> Result:
    """Run the requests to the end, one step after the other."""
    plenty = sum(-(-(r.prompt + r.output) // s.block_size) for r in requests)
    blocks = plenty if s.usable_blocks is None else s.usable_blocks
    kind = Drain if point.lifecycle == "drain" else Continuous
    planner: Any = kind(point, s, budget, blocks)
    depth = 2 if s.async_scheduling else 1
    ahead, flight, steps = list(requests), list[Step](), list[Step]()
    now = 0.0
    while True:
        planned: Step | float | None = None
        while len(flight) < depth:
            for r in arrived(ahead, now):
                r.refused = r.prompt + r.output > s.max_model_len or planner.refuses(r)
                if not r.refused:
                    planner.waiting.append(r)
            planned = planner.plan(now)
            if not isinstance(planned, Step):
                break
            planned.start = max(now, steps[-1].end if steps else 0.0)
            if cuda_graphs:
                planned.features = captured(planned.features)
            planned.end = planned.start + cost.seconds(planned.features)
            for r, *_ in planned.chunks:
                r.scheduled = planned.start if r.scheduled is None else r.scheduled
            steps.append(planned)
            flight.append(planned)
        if flight:
            ended = flight.pop(0)
            now = ended.end
            for r, *_, samples in ended.chunks:
                r.first = now if samples and r.first is None else r.first
            for r in planner.complete(ended):
                r.finished = now
            continue
        assert not isinstance(planned, Step)
        wakes = [*(r.arrival for r in ahead[:1]), *([] if planned is None else [planned])]
        if not wakes:
            break
        for r in planner.waiting:  # the engine is free, and it was the policy's choice to wait
            r.waited += 0.0 if r.scheduled is not None else max(0.0, min(wakes) - now)
        now = max(now, min(wakes))
    assert not planner.waiting
    return Result(list(requests), steps, sorted(planner.events, key=lambda event: event[0]))


def arrived(ahead: list[Req], now: float) -> Iterator[Req]:
    while ahead and ahead[0].arrival <= now:
        yield ahead.pop(0)


def captured(f: Features) -> Features:
    """A step of decodes alone computes as many rows as the next captured batch."""
    if f.prefill_slots or not 0 < f.decode_slots <= CAPTURED[-1]:
        return f
    return f._replace(decode_slots=min(size for size in CAPTURED if size >= f.decode_slots))
