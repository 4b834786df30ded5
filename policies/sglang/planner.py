"""SGLang's lifecycle: prefill batches as long as any can be formed, decodes only then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from policies.sglang.admission import PrefillAdder, Verdict
from policies.sglang.batch import RunningBatch
from policies.sglang.limits import SglangLimits
from policies.sglang.memory import Memory
from policies.sglang.ratio import NewTokenRatio
from policies.sglang.retraction import retract
from serving.queue import Fifo, Queue
from serving.radix import RadixCache
from serving.recorder import ADMIT, CHUNK, FINISH, FIRST, PREEMPT, Recorder
from serving.request import Request, Status
from serving.step import NEW, PACKED, Features, Step, Wait, Work, packed_features


class Nobody:
    """The decodes of a step that has none."""

    def members(self) -> Sequence[tuple[Request, int]]:
        """None."""
        return ()

    def opening_run(self, steps: int) -> Sequence[int]:
        """None."""
        return [0] * steps


NOBODY = Nobody()


class Planned:
    """The last planned step: whose prompts it holds, and which decodes end with it."""

    __slots__ = ("ended", "id", "works")

    def __init__(self, number: int, works: Sequence[Work], ended: Sequence[Request]) -> None:
        self.id = number
        self.works = works
        self.ended = ended


class LastBatch(NamedTuple):
    """What the last batch leaves: its prompts, and whether decodes rode along."""

    requests: Sequence[Request] = ()
    mixed: bool = False


class Sglang:
    """Plans turn after turn as SGLang's event loop does, scheduling and model not overlapped."""

    def __init__(
        self,
        limits: SglangLimits,
        recorder: Recorder,
        queue: Queue | None = None,
        hash_tokens: int = 1,
    ) -> None:
        """Begin empty.

        Args:
            limits: what bounds a batch.
            recorder: where events go.
            queue: who waits; first come first served unless given.
            hash_tokens: tokens of a prompt that one of a request's hashes covers; the radix cache
                goes by them.
        """
        self.limits = limits
        radix = None if limits.disable_radix_cache else RadixCache(limits.page_size, hash_tokens)
        self.memory = Memory(limits.max_total_tokens, limits.page_size, radix)
        self.blocks = self.memory.blocks
        self.queue: Queue = Fifo() if queue is None else queue
        self.running = RunningBatch(limits.page_size, simulated=limits.planned)
        self.ratio = NewTokenRatio(limits.schedule_conservativeness)
        self.chunked: Request | None = None  # whose prompt is under way
        self.wake: float | None = None
        self._full = False  # no prefill until somebody ends (`batch_is_full`)
        self._last = LastBatch()
        self._idle = False
        self._log = recorder.log
        self._recorder = recorder
        self._flight: Planned | None = None
        self._next = 0  # id of the next step
        self._alike = False  # whether more steps like the last one may follow
        self._stirred = False  # whether anybody came or ended since

    def refusal(self, request: Request) -> str | None:
        """What SGLang aborts at arrival, would cut the outputs of, or could never run."""
        limits, memory = self.limits, self.memory
        capacity = memory.blocks.usable * memory.page_size
        limit = min(limits.context_len, capacity) - 1
        prompt, output = request.prompt, request.output
        if prompt >= limit - 5:
            return (
                f"the prompt is {prompt} tokens; SGLang aborts one of {limit - 5} or more here "
                f"(context {limits.context_len}, KV pool {capacity} tokens)"
            )
        most = min(limit - prompt - 1, capacity - memory.ceil(prompt) - memory.page_size - 1)
        if limits.planned:  # its simulation keeps a token back, and rounds the outputs up as well
            most = min(most, capacity - prompt - 2 * memory.page_size - 1)
        if output > most:
            return (
                f"prompt + output is {prompt + output} tokens; SGLang makes at most {most} output "
                f"tokens of it here (context {limits.context_len}, KV pool {capacity} tokens)"
            )
        return None

    def add(self, request: Request) -> None:
        """It waits at the end of the queue."""
        self.queue.push(request)
        self._stirred = True

    def waiting(self) -> int:
        """Requests that wait, retracted ones included."""
        return len(self.queue)

    # One step

    def plan(self, now: float) -> Step | Wait:
        """The next batch. A turn that forms none takes no time, and may free what bars the next."""
        step = self.turn()
        if step is None and self.queue:
            step = self.turn()
        return Wait() if step is None else step

    def turn(self) -> Step | None:
        """One turn of the event loop: a prefill batch if one can be formed, or decodes, or none."""
        if self._alike and not self._stirred:
            opening, live = self.running.group.opening(), self.running.live
            if self._ample(opening, live):  # nothing can have changed: the same once more
                self.blocks.take(opening)
                self.ratio.decay()
                return self._step((), True, ())
        self._alike = self._stirred = False
        if self._idle:
            self.ratio.reset()
            self._idle = False
        self._merge()
        works = self._prefill()
        if works:
            mixed, retracted = self._mix(works)
            return self._step(works, mixed, retracted)
        decodes, retracted = self._decode()
        if decodes:
            return self._step((), True, retracted)
        self._idle = not (self.queue or retracted)
        return None

    def _ample(self, opening: int, live: int) -> bool:
        """Whether the next decode takes its pages without evicting anything."""
        free = self.blocks.free
        return opening <= free and (live <= free or not self.memory.evicts_pages)

    def _merge(self) -> None:
        """What the last batch leaves: its prompts that are done decode from now on."""
        if self.chunked is not None:
            self.memory.keep(self.chunked)
        requests, mixed = self._last
        if not requests:
            return
        self._last = LastBatch()
        join = [r for r in requests if r is not self.chunked and r.status is Status.RUNNING]
        if mixed:
            self.running.drop_ended()
            self.running.prepend(join)
            self._full = False
        else:
            if len(join) < len(requests) or not len(self.running):
                self._full = False
            self.running.append(join)

    def _prefill(self) -> list[Work]:
        """Form a prefill batch: the prompt under way, then the queue in order while it fits."""
        queue, chunked = self.queue, self.chunked
        if (self._full or not queue) and chunked is None:
            return []
        seats = self._seats()
        if seats <= 0 and chunked is None:
            self._full = True
            return []
        adder = PrefillAdder(self.limits, self.memory, self.running, self.ratio.current)
        if chunked is not None:
            adder.add_chunked(chunked)
        while (request := queue.peek()) is not None:
            if len(adder.works) >= seats:
                self._full = True
            if self._full:
                break
            before = len(adder.works)
            verdict = adder.add(request)
            if len(adder.works) > before:
                queue.pop()
                self._log((self._next, request.index, ADMIT, adder.works[-1].start, -1))
            if verdict is Verdict.NO_TOKEN:
                self._full = True
            if verdict is not Verdict.CONTINUE:
                break
        self.chunked = adder.chunked
        return adder.works

    def _seats(self) -> int:
        """Requests that may join: who ended with the last decodes still counts."""
        under_way = self.running.live + (self.chunked is not None)
        return self.limits.max_running_requests - max(len(self.running), under_way)

    def _mix(self, works: list[Work]) -> tuple[bool, Sequence[Request]]:
        """Take a prefill batch's memory, and let the decodes ride along where that is wished for.

        SGLang takes the decodes' tokens unchecked, and dies where there are none; here requests
        are retracted then.
        """
        running, memory = self.running, self.memory
        mixed = self.limits.mixed and len(running) > 0
        if mixed:
            running.drop_ended()
        group = running.group
        pages = memory.pages(works)

        def enough() -> bool:
            return memory.finds_prefill(works, pages, group.opening() if mixed else 0)

        retracted = () if enough() else self._retract(enough, keep=0)
        memory.take(pages)
        if mixed:
            memory.take_decode(group.opening(), group.live)
        return mixed and group.live > 0, retracted

    def _decode(self) -> tuple[bool, Sequence[Request]]:
        """A token for everybody who goes on; whether there is anybody, and who is retracted."""
        running, memory = self.running, self.memory
        if not len(running):
            return False, ()
        ended = running.drop_ended()
        retracted: Sequence[Request] = ()

        def enough() -> bool:
            return memory.finds_decode(running.group.opening())

        if running.live:
            if enough():
                self.ratio.decay()
            else:
                retracted = self._retract(enough, keep=1)
        if ended or retracted:
            self._full = False
        if running.live:
            memory.take_decode(running.group.opening(), running.live)
        return running.live > 0, retracted

    def _retract(self, enough: Callable[[], bool], keep: int) -> Sequence[Request]:
        """Take requests out until there is enough; they wait again, after all others."""
        victims = retract(self.running, self.memory, self.ratio, enough, keep)
        for request in victims:
            self._take_out(request)
            request.status = Status.WAITING
            self.queue.push(request)
        if keep and not enough():
            last = self.running.in_order()[0]
            self.running.leave(last)
            self.memory.retract(last)
            self._take_out(last)
            last.status = Status.REFUSED
            self._recorder.refuse(last, "aborted: its KV outgrew the pool with nobody else in it")
        return victims

    def _take_out(self, request: Request) -> None:
        self._log((self._next, request.index, PREEMPT, request.computed, -1))
        request.computed = 0

    def _step(self, works: Sequence[Work], decodes: bool, retracted: Sequence[Request]) -> Step:
        """Count what was planned as done, and say what it is."""
        running, number = self.running, self._next
        self._next = number + 1
        group = running.group
        held = len(works) + group.live
        ended: Sequence[Request] = ()
        live = pairs = longest = 0
        if decodes:
            live, pairs = group.live, group.context + group.live
            longest = group.longest_keys()
            ended = running.advance()
        if works:
            features = packed_features(works, live, pairs, longest)
            self._account(works, number)
            self._last = LastBatch([work.request for work in works], decodes)
        else:
            sums = (0, live, 0, live, 0, 0, pairs, pairs, 0, live, live, 0, longest)
            features = NEW(Features, sums)
        barred = self._full or not self.queue
        self._alike = barred and not (works or ended or retracted)
        self._flight = Planned(number, works, ended)
        who, out = group if decodes else NOBODY, tuple(retracted) if retracted else ()
        used, waiting = self.memory.blocks_used, len(self.queue)
        return NEW(Step, (number, PACKED, tuple(works), who, out, features, waiting, held, used))

    def _account(self, works: Sequence[Work], number: int) -> None:
        """Whose prompts are done with this step, and so emit a token."""
        log = self._log
        for request, _, tokens, samples in works:
            index = request.index
            if samples:
                request.sampled += 1
                log((number, index, CHUNK, tokens, -1, number, index, FIRST, 1, -1))
            else:
                log((number, index, CHUNK, tokens, -1))

    def complete(self, step: Step) -> Sequence[Request]:
        """The planned step has ended; returns whom it finished, in batch order."""
        planned = self._flight
        if planned is None or planned.id != step.id:
            raise RuntimeError(f"step {step.id} ends, which is not the one that was planned")
        self._flight = None
        if not planned.works and not planned.ended:
            return ()
        self._stirred = True
        finished = []
        for work in planned.works:
            request = work.request
            if request.computed < request.target:
                continue
            if request.sampled >= request.output:
                finished.append(request)
                self._finish(request, planned.id)
            else:
                self.memory.keep(request)
        for request in planned.ended:
            finished.append(request)
            self._finish(request, planned.id)
        return finished

    def _finish(self, request: Request, number: int) -> None:
        self.memory.finish(request)
        request.status = Status.FINISHED
        self._log((number, request.index, FINISH, request.output, -1))

    # Runs of equal steps

    def run_length(self, most: int) -> int:
        """Decodes alone, until somebody's last token or until memory has to be found."""
        if not self._alike:
            return 1
        group, free = self.running.group, self.blocks.free
        if self.memory.evicts_pages:
            free -= group.live  # SGLang evicts as if each opened a page
        return 1 + group.steps_within(max(free, 0), min(group.until_end(), most - 1))

    def advance(self, step: Step, steps: int) -> tuple[Step, Sequence[int]]:
        """Count the last planned step as `steps` equal ones."""
        planned = self._flight
        if steps == 1 or planned is None:
            return step, ()
        opening = self.running.group.opening_run(steps - 1)
        used = list(accumulate(opening, initial=step.blocks_used))
        self.blocks.take(used[-1] - used[0])
        self.ratio.decay(steps - 1)
        planned.id += steps - 1
        planned.ended = self.running.advance(steps - 1)
        self._alike = not planned.ended
        self._next = planned.id + 1
        return NEW(Step, (planned.id, *step[1:])), used
