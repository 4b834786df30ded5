"""The continuous lifecycle: every step is planned anew, as vLLM's V1 scheduler plans it.

Running requests come first, in the order of their admission, then waiting ones; nothing is padded.
Decodes that simply go on advance as one group, and the requests are looked at one by one only in a
step that is short of token budget or KV blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from policies.grouping import Fcfs, Grouping
from serving.blocks import Blocks
from serving.group import DecodeGroup
from serving.queue import Queue
from serving.recorder import ADMIT, CHUNK, FINISH, FIRST, PREEMPT, SKIP, Recorder
from serving.request import Request, Status
from serving.step import PACKED, Features, Step, Wait, Work, packed_features


@dataclass(frozen=True)
class Limits:
    """What bounds a step, in vLLM's words."""

    max_num_batched_tokens: int
    max_num_seqs: int
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0  # tokens of one prompt a step; 0: no cap
    watermark: float = 0.0  # share of the blocks that admission leaves free
    reserve_full_isl: bool = True  # admission needs room for all known tokens, not just a chunk
    priority: bool = False  # the victim is the least urgent request, not the newest
    asynchronous: bool = False  # a step is planned while the one before it runs


class Planned:
    """What the end of a planned step will bring."""

    __slots__ = ("ending", "id", "joined", "lost")

    def __init__(self, id: int, ending: Sequence[Request], joined: Sequence[Request]) -> None:
        self.id = id
        self.ending = ending  # who samples a last token in it, or ends without one
        self.joined = joined  # who samples a token in it, completing its prompt, and goes on
        self.lost: Sequence[Request] = ()  # preempted since, with a token due from it


class Admission:
    """The token budget of one step, and the rules by which a waiting request joins it."""

    def __init__(self, planner: Continuous) -> None:
        self._planner = planner
        self.budget = 0
        self.cap = 0
        self.works: list[Work] = []
        self._tokens = 0  # of the works
        self._asked: tuple[Request | None, int, int] = (None, 0, 0)

    def open(self) -> None:
        """A new step: the whole budget, and the cap on one prompt's tokens."""
        planner = self._planner
        limits = planner.limits
        self.budget = self.cap = limits.max_num_batched_tokens
        self.works = []
        self._tokens = 0
        if limits.long_prefill_token_threshold and len(planner.running) + planner.waiting() != 1:
            self.cap = limits.long_prefill_token_threshold  # lifted for a lone request

    @property
    def seats(self) -> int:
        """Seats that are free, counting running requests in prefill too."""
        return self._planner.limits.max_num_seqs - len(self._planner.running)

    @property
    def taken(self) -> int:
        """Prompts in the step so far."""
        return len(self.works)

    def slots(self, request: Request) -> int:
        """Prompt tokens of the step if it joined too; packed, so without padding."""
        hits, _ = self._planner.blocks.hit(request)
        tokens = min(request.known - hits * self._planner.blocks.size, self.cap)
        if self._planner.limits.chunked_prefill:
            tokens = min(tokens, self.budget)
        return self._tokens + tokens

    def fits(self, request: Request) -> bool:
        """Whether there is a seat, budget and KV blocks for it (vLLM's admission gate)."""
        planner, budget = self._planner, self.budget
        blocks, limits = planner.blocks, planner.limits
        if budget <= 0 or len(planner.running) >= limits.max_num_seqs:
            return False
        free = blocks.free - (planner.watermark if planner.running else 0)
        if free <= 0:
            return False
        hits, idle = blocks.hit(request) if blocks.caching else (0, 0)
        hit = hits * blocks.size
        known = request.prompt + request.sampled
        tokens = known - hit
        if tokens > self.cap:
            tokens = self.cap
        if tokens > budget:
            if not limits.chunked_prefill:
                return False
            tokens = budget
        reserved = known if limits.reserve_full_isl else hit + tokens
        if -(-reserved // blocks.size) - hits + idle > free:
            return False
        self._asked = (request, hits, tokens)
        return True

    def take(self, request: Request) -> None:
        """Admit the request that was just asked about."""
        if self._asked[0] is not request:
            self.fits(request)
        _, hits, tokens = self._asked
        planner = self._planner
        hit = hits * planner.blocks.size
        planner.admitted(request, hit)
        request.target = request.prompt + request.sampled
        request.computed = hit
        planner.blocks.enter(request, hits, hit + tokens)
        self.serve(request, tokens)

    def serve(self, request: Request, tokens: int) -> None:
        """Compute `tokens` more of its prompt; the KV blocks for them are taken already."""
        start = request.computed
        request.computed = upto = start + tokens
        self.budget -= tokens
        self._tokens += tokens
        if self._planner.blocks.caching:
            self._planner.blocks.filled(request, upto)
        samples = upto == request.target and request.output > 0
        self.works.append(Work(request, start, tokens, samples))


class Continuous:
    """Plans step after step: running requests, then the prompts that the grouping lets in."""

    def __init__(
        self,
        limits: Limits,
        blocks: Blocks,
        queue: Queue,
        recorder: Recorder,
        grouping: Grouping | None = None,
    ) -> None:
        self.limits = limits
        self.blocks = blocks
        self.queue = queue
        self.grouping: Grouping = grouping or Fcfs()
        self.running: dict[Request, None] = {}  # in order of admission
        self.prefilling: dict[Request, None] = {}  # those of them in mid-prompt
        self.group = DecodeGroup(blocks.size)  # those of them that decode on
        self.watermark = int(limits.watermark * (blocks.usable + 1))  # blocks
        self.wake: float | None = None
        self._room = Admission(self)
        self._log = recorder.log
        self._flight: deque[Planned] = deque()
        self._next = 0  # id of the next step
        self._admissions = 0
        self._preempted: list[Request] = []
        self._alike = False  # whether more steps like the last one may follow
        self._stirred = False  # whether anybody came or left since
        self._to_report = False  # a request has finished since the last plan

    def refusal(self, request: Request) -> str | None:
        """Too large for the KV cache even alone, or for one step where prompts stay whole."""
        total = request.prompt + request.output
        need = self.blocks.ceil(max(total - 1, request.prompt))  # the last token has no KV
        if need > self.blocks.usable:
            return (
                f"prompt + output is {total} tokens and needs {need} KV blocks, over the "
                f"{self.blocks.usable} usable ones of {self.blocks.size} tokens"
            )
        most = self.limits.max_num_batched_tokens
        if not self.limits.chunked_prefill and total > most:
            return (
                f"prompt + output is {total} tokens, over max_num_batched_tokens {most}, "
                "and prompts are not chunked"
            )
        return None

    def add(self, request: Request) -> None:
        """It waits at the end of the queue, or at its place in the order."""
        self.queue.push(request)
        self._stirred = True

    def waiting(self) -> int:
        """Requests that wait, preempted ones included."""
        return len(self.queue)

    # One step

    def plan(self, now: float) -> Step | Wait:
        """Running requests in admission order, then, if nobody was preempted, waiting ones."""
        room, group = self._room, self.group
        if self._alike and not self._stirred and self.wake is None:
            opening = group.opening()
            if opening <= self.blocks.free:  # nothing can have changed: the same once more
                self.blocks.take(opening)
                return self._step((), ())
        self._alike = self._stirred = False
        room.open()
        self._preempted = []
        skipped = () if self._serve_all(room) else InOrder(self, room).serve()
        wait = None
        if self.queue and not self._preempted:
            wait = self.grouping.form(self.queue, room, now)
        self.wake = None if wait is None else wait.until
        idle = not (room.works or group.live or skipped or self._preempted)
        if idle and not (self.limits.asynchronous and (self.running or self._to_report)):
            return wait or Wait()
        self._to_report = False
        return self._step(room.works, skipped)

    def _serve_all(self, room: Admission) -> bool:
        """Give every running request what it wants, if there is enough for all; else nothing."""
        group, blocks = self.group, self.blocks
        budget = room.budget - group.live
        need = group.opening()
        if budget < 0 or need > blocks.free:
            return False
        chunks: list[tuple[Request, int]] = []
        for request in self.prefilling:
            tokens = min(request.target - request.computed, room.cap)
            if tokens > budget:
                if request is not next(reversed(self.running)):
                    return False
                tokens = budget  # the last in order takes what the others leave
            budget -= tokens
            need += blocks.ceil(request.computed + tokens) - blocks.ceil(request.computed)
            if tokens:
                chunks.append((request, tokens))
        if need > blocks.free:
            return False
        blocks.take(need)
        for request, tokens in chunks:
            room.serve(request, tokens)
        room.budget = budget
        return True

    def _step(self, works: Sequence[Work], skipped: Sequence[Request]) -> Step:
        """Count what was planned as done, and say what it is."""
        group, number = self.group, self._next
        self._next = number + 1
        live = group.live
        pairs = group.context + live
        ending = group.advance()
        joined: Sequence[Request] = ()
        if works:
            features = packed_features(works, live, pairs)
            ended, joined = self._account(works, number)
            ending = [*ending, *ended]
        else:
            features = Features(0, live, 0, live, 0, 0, pairs, pairs, 0, live, live, 0)
        for request in skipped:
            group.join(request)
            self._log((number, request.index, SKIP, 0, -1))
        self._alike = bool(live) and not (works or ending or skipped or self._preempted)
        self._flight.append(Planned(number, ending, joined))
        blocks = self.blocks
        return Step(
            number,
            PACKED,
            tuple(works),
            group,
            tuple(self._preempted) if self._preempted else (),
            features,
            len(self.queue),
            len(self.running),
            blocks.usable - blocks.free,
        )

    def _account(
        self, works: Sequence[Work], number: int
    ) -> tuple[Sequence[Request], Sequence[Request]]:
        """Who ends with the chunks of this step, and who decodes from now on."""
        log, prefilling, join = self._log, self.prefilling, self.group.join
        ended: list[Request] = []
        joined: list[Request] = []
        for request, _, tokens, samples in works:
            index = request.index
            if request.computed < request.target:
                log((number, index, CHUNK, tokens, -1))
                prefilling[request] = None
                continue
            if prefilling:
                prefilling.pop(request, None)
            if samples:
                request.sampled += 1
                log((number, index, CHUNK, tokens, -1, number, index, FIRST, 1, -1))
            else:
                log((number, index, CHUNK, tokens, -1))
            if request.sampled >= request.output:
                ended.append(request)
            else:
                joined.append(request)
                join(request)
        return ended, joined

    # What changes who runs

    def admitted(self, request: Request, hit: int) -> None:
        """It runs, after all others; `hit` tokens of it were found in the prefix cache."""
        request.status = Status.RUNNING
        self.running[request] = None
        self._log((self._next, request.index, ADMIT, hit, -1))
        self._admissions += 1
        request.seq = self._admissions

    def preempt(self, request: Request, served: int) -> None:
        """It loses its blocks and all that is computed, and waits again, ahead of all others.

        Args:
            request: a running one.
            served: tokens that this step had already given it.
        """
        due = self._due(request)
        if request in self.group:
            self.group.leave(request)
        self._log((self._next, request.index, PREEMPT, request.computed, -1))
        held = request.computed + served
        unknown = int(due is not None and held > request.target)  # its newest token
        self.blocks.release(request, held, held - unknown)
        request.computed = 0
        if due is not None:  # its token is on its way, and will still be delivered
            request.sampled -= 1
            due.lost = (*due.lost, request)
        del self.running[request]
        self.prefilling.pop(request, None)
        request.status = Status.WAITING
        self.queue.push_front(request)
        self._preempted.append(request)

    def _due(self, request: Request) -> Planned | None:
        """The step in flight that samples a token of it, if there is one."""
        if not self._flight:
            return None
        last, group = self._flight[-1], self.group
        takes_part = request in group and not group.newcomer(request)
        return last if takes_part or request in last.joined or request in last.ending else None

    def complete(self, step: Step) -> Sequence[Request]:
        """The oldest planned step has ended; returns whom it finished, in admission order."""
        planned = self._flight.popleft()
        if planned.id != step.id:
            raise RuntimeError(f"step {planned.id} ends before step {step.id}")
        ending, lost = planned.ending, planned.lost
        if not ending and not lost:
            return ()
        finished = list(ending)
        if lost:
            finished = [r for r in ending if r not in lost]
            for request in lost:
                request.sampled += 1
                if request.sampled >= request.output:
                    finished.append(request)
        if len(finished) > 1:
            finished.sort(key=lambda r: r.seq)
        for request in finished:
            if request.status is Status.RUNNING:
                del self.running[request]
                self.blocks.release(request, request.computed, request.computed)
            else:
                self.queue.remove(request)
            request.status = Status.FINISHED
            self._log((planned.id, request.index, FINISH, request.output, -1))
        self._stirred = True
        self._to_report |= self.limits.asynchronous and bool(finished)
        return finished

    # Runs of equal steps

    def run_length(self, most: int) -> int:
        """Decodes alone, until somebody's last token or a shortage of blocks."""
        if not self._alike or any(p.ending or p.lost for p in self._flight):
            return 1
        steps = min(self.group.until_end(), most - 1)
        return 1 + self.group.steps_within(self.blocks.free, steps)

    def advance(self, step: Step, steps: int) -> tuple[Step, Sequence[int]]:
        """Count the last planned step as `steps` equal ones."""
        if steps == 1:
            return step, [step.blocks_used]
        used = list(accumulate(self.group.opening_run(steps - 1), initial=step.blocks_used))
        self.blocks.take(used[-1] - used[0])
        last = self._flight[-1]
        last.id += steps - 1
        last.ending = self.group.advance(steps - 1)
        self._alike = not last.ending
        self._next = last.id + 1
        return step._replace(id=last.id), used


class InOrder:
    """Running requests one by one, where there is not enough for all: who is skipped, who loses."""

    def __init__(self, planner: Continuous, room: Admission) -> None:
        self._planner = planner
        self._room = room
        self._order = list(planner.running)
        self._at = 0
        self._served: dict[Request, int] = {}

    def serve(self) -> Sequence[Request]:
        """Serve them in admission order while budget lasts; returns the decodes passed over."""
        room, order = self._room, self._order
        while self._at < len(order) and room.budget > 0:
            request = order[self._at]
            tokens = self._wants(request)
            if tokens:
                if not self._find_blocks(request, tokens):
                    break
                self._served[request] = tokens
                room.budget -= tokens
            self._at += 1
        return self._settle()

    def _wants(self, request: Request) -> int:
        """Tokens it asks for; none where its last token is on its way."""
        if request in self._planner.group:
            return 1
        rest = max(0, request.target - request.computed)
        return min(rest, self._room.cap, self._room.budget)

    def _find_blocks(self, request: Request, tokens: int) -> bool:
        """Preempt until its blocks are free; False when it was itself the victim."""
        planner = self._planner
        blocks, group = planner.blocks, planner.group
        if request in group:
            need = int(group.opens(request))
        else:
            need = blocks.ceil(request.computed + tokens) - blocks.ceil(request.computed)
        while need > blocks.free:
            victim = self._victim()
            self._take_out(victim)
            if victim is request:
                return False
        blocks.take(need)
        return True

    def _victim(self) -> Request:
        """The newest running request, or under priority the least urgent, latest one."""
        if self._planner.limits.priority:
            return max(self._order, key=lambda r: (r.priority, r.arrival))
        return self._order[-1]

    def _take_out(self, victim: Request) -> None:
        """Preempt it; what this step had given it goes back to the budget."""
        at = self._order.index(victim)
        if at < self._at:
            self._at -= 1
        del self._order[at]
        served = self._served.pop(victim, 0)
        self._room.budget += served
        self._planner.preempt(victim, served)

    def _settle(self) -> Sequence[Request]:
        """Enter the chunks, and take the decodes that got nothing out of the group."""
        planner, served, skipped = self._planner, self._served, []
        for request in self._order:
            if request in planner.group:
                if request not in served:
                    planner.group.leave(request)
                    skipped.append(request)
            elif request in served:
                self._room.budget += served[request]  # `serve` takes it again
                self._room.serve(request, served[request])
        return skipped
