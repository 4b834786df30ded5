"""What bounds a step, and the rules by which a waiting request joins it (vLLM's admission)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.recorder import CHUNK, FIRST
from serving.request import Request
from serving.step import NEW, Work

if TYPE_CHECKING:
    from policies.continuous import Continuous


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


class Admission:
    """The token budget of one step, and the rules by which a waiting request joins it."""

    def __init__(self, planner: Continuous) -> None:
        self._planner = planner
        self._log = planner.log
        self._prefilling = planner.prefilling
        self._caching = planner.blocks.caching
        self.budget = 0
        self.cap = 0
        self.works: list[Work] = []
        self.done: list[Request] = []  # whose known tokens are all computed with this step
        self.pairs = 0  # sums over the works, as in `mixed_features`
        self.read = 0
        self._asked: tuple[Request | None, int, int] = (None, 0, 0)

    def open(self) -> None:
        """A new step: the whole budget, and the cap on one prompt's tokens."""
        planner = self._planner
        limits = planner.limits
        self.budget = self.cap = limits.max_num_batched_tokens
        self.works = []
        self.done = []
        self.pairs = self.read = 0
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
        return sum(work.tokens for work in self.works) + tokens

    def fits(self, request: Request) -> bool:
        """Whether there is a seat, budget and KV blocks for it (vLLM's admission gate)."""
        budget = self.budget
        if budget <= 0:
            return False
        planner = self._planner
        blocks, limits = planner.blocks, planner.limits
        if len(planner.running) >= limits.max_num_seqs:
            return False
        free = blocks.free - (planner.watermark if planner.running else 0)
        if free <= 0:
            return False
        hits, idle = blocks.hit(request) if self._caching else (0, 0)
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
        start, index, number = request.computed, request.index, self._planner.number
        request.computed = upto = start + tokens
        self.budget -= tokens
        self.pairs += tokens * (start + upto + 1) // 2
        self.read += upto
        if self._caching:
            self._planner.blocks.filled(request, upto)
        samples = False
        if upto < request.target:
            self._prefilling[request] = None
            self._log((number, index, CHUNK, tokens, -1))
        else:
            self.done.append(request)
            if start:
                self._prefilling.pop(request, None)
            if request.output:
                samples = True
                self._log((number, index, CHUNK, tokens, -1, number, index, FIRST, 1, -1))
            else:
                self._log((number, index, CHUNK, tokens, -1))
        self.works.append(NEW(Work, (request, start, tokens, samples)))
