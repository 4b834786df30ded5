"""The continuous lifecycle: every step is planned anew, as vLLM's V1 scheduler plans it.

Running requests come first, in the order of their admission, then waiting ones; nothing is padded.
Decodes that simply go on advance as one group, and the requests are looked at one by one only in a
step that is short of token budget or KV blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from mypy_extensions import mypyc_attr

from policies.admission import Admission, Limits
from policies.grouping import Fcfs, Grouping
from policies.in_order import InOrder
from serving.blocks import Blocks
from serving.group import DecodeGroup
from serving.queue import Queue
from serving.recorder import ADMIT, FINISH, PREEMPT, SKIP, Recorder
from serving.request import Request, Status
from serving.step import NEW, PACKED, Features, Step, Wait, Work, mixed_features


class Planned:
    """What the end of a planned step will bring."""

    __slots__ = ("ending", "id", "joined", "lost")

    def __init__(self, id: int, ending: Sequence[Request], joined: Sequence[Request]) -> None:
        self.id = id
        self.ending = ending  # who samples a last token in it, or ends without one
        self.joined = joined  # who samples a token in it, completing its prompt, and goes on
        self.lost: Sequence[Request] = ()  # preempted since, with a token due from it


@mypyc_attr(allow_interpreted_subclasses=True)
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
        self._always = blocks.usable * blocks.size  # prompt + output that is never too large
        if not limits.chunked_prefill:
            self._always = min(self._always, limits.max_num_batched_tokens)
        self.watermark = int(limits.watermark * (blocks.usable + 1))  # blocks
        self.wake: float | None = None
        self.log = recorder.log
        self._room = Admission(self)
        self._flight: deque[Planned] = deque()
        self.number = 0  # id of the next step
        self._admissions = 0
        self._preempted: list[Request] = []
        self._alike = False  # whether more steps like the last one may follow
        self._stirred = False  # whether anybody came or left since
        self._to_report = False  # a request has finished since the last plan

    def refusal(self, request: Request) -> str | None:
        """Too large for the KV cache even alone, or for one step where prompts stay whole."""
        total = request.prompt + request.output
        if total <= self._always:
            return None
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
                return self._decode()
        self._alike = self._stirred = False
        room.open()
        if self._preempted:
            self._preempted = []
        skipped = () if self._serve_all(room) else InOrder(self, room).serve()
        wait = None
        if self.queue and not self._preempted:
            wait = self.grouping.form(self.queue, room, now)
        self.wake = None if wait is None else wait.until
        if not (room.works or group.live or skipped or self._preempted) and not (
            self.limits.asynchronous and (self.running or self._to_report)
        ):
            return wait or Wait()
        self._to_report = False
        return self._step(room, skipped)

    def _serve_all(self, room: Admission) -> bool:
        """Give every running request what it wants, if there is enough for all; else nothing."""
        blocks = self.blocks
        budget = room.budget - self.group.live
        need = self.group.opening()
        if budget < 0 or need > blocks.free:
            return False
        chunks: list[tuple[Request, int]] = []
        left, size = budget, blocks.size
        for request in self.prefilling:
            tokens = min(request.target - request.computed, room.cap)
            if tokens > left:
                if request is not next(reversed(self.running)):
                    return False
                tokens = left  # the last in order takes what the others leave
            left -= tokens
            computed = request.computed
            need += -(-(computed + tokens) // size) - -(-computed // size)
            if tokens:
                chunks.append((request, tokens))
        if need > blocks.free:
            return False
        blocks.take(need)
        room.budget = budget
        for request, tokens in chunks:
            room.serve(request, tokens)
        return True

    def _decode(self) -> Step:
        """The same decodes once more, and nothing else."""
        group = self.group
        live = group.live
        pairs, longest = group.context + live, group.tick + group.longest + 1
        ending = group.advance()
        self._alike = not ending
        features = (0, live, 0, live, 0, 0, pairs, pairs, 0, live, live, 0, longest)
        return self._planned((), NEW(Features, features), ending, ())

    def _step(self, room: Admission, skipped: Sequence[Request]) -> Step:
        """Count what was planned as done, and say what it is."""
        group, works = self.group, room.works
        live = group.live
        pairs = group.context + live
        longest = group.longest_keys()
        ending = group.advance()
        joined: list[Request] = []
        sampled = 0
        for request in room.done:
            if request.output:
                request.sampled += 1
                sampled += 1
            if request.sampled < request.output:
                joined.append(request)
                group.join(request)
            else:
                ending = [*ending, request]
        for request in skipped:
            group.join(request)
            self.log((self.number, request.index, SKIP, 0, -1))
        self._alike = bool(live) and not (works or ending or skipped or self._preempted)
        tokens = self.limits.max_num_batched_tokens - room.budget - live
        features = mixed_features(
            tokens, room.pairs, len(works), sampled, room.read, live, pairs, longest
        )
        return self._planned(tuple(works), features, ending, joined)

    def _planned(
        self,
        works: tuple[Work, ...],
        features: Features,
        ending: Sequence[Request],
        joined: Sequence[Request],
    ) -> Step:
        number, blocks, lost = self.number, self.blocks, self._preempted
        self.number = number + 1
        self._flight.append(Planned(number, ending, joined))
        preempted = tuple(lost) if lost else ()
        used = blocks.usable - blocks.free
        waiting, running = len(self.queue), len(self.running)
        fields = (number, PACKED, works, self.group, preempted, features, waiting, running, used)
        return NEW(Step, fields)

    # What changes who runs

    def admitted(self, request: Request, hit: int) -> None:
        """It runs, after all others; `hit` tokens of it were found in the prefix cache."""
        request.status = Status.RUNNING
        self.running[request] = None
        self.log((self.number, request.index, ADMIT, hit, -1))
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
        self.log((self.number, request.index, PREEMPT, request.computed, -1))
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
            self.log((planned.id, request.index, FINISH, request.output, -1))
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
            return step, ()
        used = list(accumulate(self.group.opening_run(steps - 1), initial=step.blocks_used))
        self.blocks.take(used[-1] - used[0])
        last = self._flight[-1]
        last.id += steps - 1
        last.ending = self.group.advance(steps - 1)
        self._alike = not last.ending
        self.number = last.id + 1
        return NEW(Step, (last.id, *step[1:])), used
