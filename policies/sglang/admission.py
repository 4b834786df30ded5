"""One prefill batch's budgets, and the sums by which a request may join it (`PrefillAdder`)."""

from __future__ import annotations

from enum import Enum, auto

from policies.sglang.batch import RunningBatch
from policies.sglang.limits import CLIP_MAX_NEW_TOKENS, SglangLimits
from policies.sglang.memory import Memory
from policies.sglang.simulation import DecodesAhead, as_sglang, before, behind
from serving.request import Request, Status
from serving.step import NEW, Work

EXACT_UP_TO = 1 << 52
"""Tokens beyond which a pool counts as unlimited, since the sums could not show its end."""


class Verdict(Enum):
    """What an attempt to join says of the next one."""

    CONTINUE = auto()
    NO_TOKEN = auto()
    """Memory is spoken for: no prefill until somebody ends."""
    OTHER = auto()
    """This batch has all the prompt tokens that it may have."""


class PrefillAdder:
    """What is left for one prefill batch: prompt tokens, KV now, and KV with the outputs to come.

    A request that joins is charged for its prompt tokens in whole pages, a page more, and, if its
    prompt ends in this batch, all its outputs; one that runs already for a share of the outputs
    that it has not made yet (`ratio`).
    """

    def __init__(
        self, limits: SglangLimits, memory: Memory, running: RunningBatch, ratio: float
    ) -> None:
        self._limits = limits
        self._memory = memory
        self._running = running
        self._ratio = ratio
        self._reserved = running.total_ahead() * ratio  # of the outputs that those make yet
        self._mix = len(running) if limits.mixed else 0  # decodes that will ride along
        self.rem_input = limits.max_prefill_tokens - self._mix
        self.rem_chunk = limits.chunked_prefill_size - self._mix if limits.chunking else EXACT_UP_TO
        self.works: list[Work] = []
        self.chunked: Request | None = None  # whose prompt goes on after this batch
        self._charges: list[int] = []  # in order
        self._charged = 0  # their sum
        self._charged_now = 0  # without outputs
        self._ahead: DecodesAhead | None = None  # of the planned admission

    # What is left

    @property
    def rem_current(self) -> int:
        """Tokens left now."""
        return self._memory.space - self._mix - self._charged_now

    @property
    def rem_total(self) -> float:
        """Tokens left with the outputs to come, to be compared with whole numbers only.

        One product stands for SGLang's sum of products. They differ in the last bits, so close to
        an integer it is summed as SGLang does it.
        """
        space = self._memory.space
        if space >= EXACT_UP_TO:
            return space
        left = space - self._mix - self._reserved - self._charged
        return self._summed(space) if abs(left - round(left)) < 1e-6 else left

    def _summed(self, space: int) -> float:
        """The same in SGLang's order of operations, O(running)."""
        running, ratio = self._running, self._ratio
        ahead = 0.0
        for request in running.in_order():  # `sum` rounds less from Python 3.12 on
            ahead += min(running.outputs_ahead(request), CLIP_MAX_NEW_TOKENS) * ratio
        offset = self._mix + ahead
        for charge in self._charges:
            offset += charge
        return space - offset

    def _state(self) -> Verdict:
        """Whether another one may try."""
        if self.rem_total <= 0 or self.rem_current <= 0:
            return Verdict.NO_TOKEN
        if self.rem_input <= 0 or self.rem_chunk <= 0:
            return Verdict.OTHER
        return Verdict.CONTINUE

    # Joining

    def add_chunked(self, request: Request) -> None:
        """The prompt that is being chunked goes on, whatever is left."""
        memory_bound = int(self.rem_total)
        limit = min(self.rem_chunk, memory_bound)
        if limit <= 0:
            limit = self.rem_chunk  # it must get on, to give its memory back some day
        self._take(request, min(limit, request.target - request.computed))

    def add(self, request: Request) -> Verdict:
        """A waiting request joins if it may: then its work is the last one."""
        join = self._join_planned if self._limits.planned else self._join
        tokens = join(request)
        if isinstance(tokens, Verdict):
            return tokens
        self._take(request, tokens)
        return self._state()

    def _join(self, request: Request) -> int | Verdict:
        """Tokens of it that join now, with its cached head locked, or why none do."""
        prefix = self._memory.hold_prefix(request)
        tokens = self._fits(request, prefix)
        if isinstance(tokens, Verdict):
            self._memory.let_go(request)
        else:
            self._begin(request, prefix)
        return tokens

    def _fits(self, request: Request, prefix: int) -> int | Verdict:
        memory, extend = self._memory, request.known - prefix
        ahead = min(max(request.output - request.sampled, 0), CLIP_MAX_NEW_TOKENS)
        if extend + ahead + memory.page_size >= self.rem_total:
            return Verdict.NO_TOKEN
        paged = memory.ceil(extend)
        if not self._limits.chunking and self.works and paged >= self.rem_input:
            return Verdict.OTHER
        if paged <= self.rem_chunk:
            return extend
        piece = memory.floor(prefix + memory.floor(self.rem_chunk)) - prefix
        return piece if piece > 0 else Verdict.OTHER

    def _join_planned(self, request: Request) -> int | Verdict:
        """The same where no request ends early: the decodes ahead are simulated."""
        memory, full = self._memory, request.known
        need = memory.ceil(full) + memory.page_size
        if need > min(self.rem_current, self.rem_total):
            return Verdict.NO_TOKEN
        if not self._survives(request, self.rem_current - need):
            return Verdict.NO_TOKEN
        if full > self.rem_chunk and self.rem_chunk <= 0:
            return Verdict.OTHER
        self._begin(request, 0)
        return min(full, self.rem_chunk)

    def _survives(self, request: Request, free: int) -> bool:
        """Whether memory lasts if all decode on and each gives its tokens back at its end."""
        left, held = request.output - request.sampled, request.known
        ahead = self._ahead
        if ahead is None:
            self._ahead = ahead = self._running.decodes_ahead()
            for joined, *_ in self.works:
                if joined.output > joined.sampled:
                    ahead.join(joined.output - joined.sampled, joined.known, behind)
            if left > 0:
                ahead.join(left, held, before)
        elif left > 0:
            ahead.join(left, held, as_sglang)
        return ahead.last(min(free, EXACT_UP_TO))

    def _begin(self, request: Request, prefix: int) -> None:
        """It runs from now on."""
        request.status = Status.RUNNING
        request.target = request.known
        request.computed = prefix

    def _take(self, request: Request, tokens: int) -> None:
        """Compute `tokens` more of its prompt, and charge for it."""
        start = request.computed
        request.computed = end = start + tokens
        ends = end == request.target
        self.works.append(NEW(Work, (request, start, tokens, ends and request.output > 0)))
        if not ends:
            self.chunked = request
        paged = self._memory.ceil(tokens)
        self.rem_input -= paged
        self.rem_chunk -= paged
        self._charged_now += paged + self._memory.page_size
        outputs = min(request.output, CLIP_MAX_NEW_TOKENS) if ends else 0
        self._charges.append(paged + self._memory.page_size + outputs)
        self._charged += self._charges[-1]
