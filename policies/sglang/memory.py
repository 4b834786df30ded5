"""SGLang's KV pool and the radix cache in it, in tokens: who takes, keeps and gives back."""

from __future__ import annotations

from serving.blocks import Blocks
from serving.radix import Node, RadixCache, Tokens
from serving.request import Request
from serving.step import Work


class Memory:
    """A pool of whole pages. What a request holds is ceil(computed), its cached head included."""

    def __init__(self, max_total_tokens: int, page_size: int, radix: RadixCache | None) -> None:
        """Begin empty.

        Args:
            max_total_tokens: KV tokens; a part of a page at the end is not used.
            page_size: tokens of a page.
            radix: the cache of what has been computed, or None.
        """
        self.page_size = page_size
        self.blocks = Blocks(max_total_tokens // page_size, page_size)
        self.radix = radix
        self._held: dict[Request, tuple[Tokens, Node]] = {}  # locked: its tokens are the tree's

    @property
    def available(self) -> int:
        """Free tokens."""
        return self.blocks.free * self.page_size

    @property
    def evictable(self) -> int:
        """Cached tokens that no request holds."""
        return 0 if self.radix is None else self.radix.evictable

    @property
    def space(self) -> int:
        """Free tokens and those that could be."""
        free = self.blocks.free * self.page_size
        return free if self.radix is None else free + self.radix.evictable

    @property
    def evicts_pages(self) -> bool:
        """Whether decodes evict more than they take: a page each, whoever opens one."""
        return self.radix is not None and self.page_size > 1

    @property
    def blocks_used(self) -> int:
        """Pages that requests hold."""
        return self.blocks.used - self.evictable // self.page_size

    def ceil(self, tokens: int) -> int:
        """Rounded up to pages."""
        return -(-tokens // self.page_size) * self.page_size

    def floor(self, tokens: int) -> int:
        """Rounded down to pages."""
        return tokens - tokens % self.page_size

    # Admission

    def hold_prefix(self, request: Request) -> int:
        """Find the cached head of its known tokens but the last, and lock it; its length."""
        if self.radix is None:
            return 0
        tokens = self.radix.sequence(request)
        node = self.radix.match(tokens, request.known - 1)
        self.radix.lock(node)
        self._held[request] = tokens, node
        return node.end

    def let_go(self, request: Request) -> None:
        """It is not admitted after all, or gives up what it shares."""
        if self.radix is not None:
            self.radix.unlock(self._held.pop(request)[1])

    # Taking

    def find(self, tokens: int) -> None:
        """Evict for what the free tokens are short of `tokens`."""
        if self.radix is None:
            return
        short = tokens - self.blocks.free * self.page_size
        if short > 0:
            self.blocks.free += self.radix.evict(short) // self.page_size

    def pages(self, works: list[Work]) -> int:
        """Pages that a prefill batch takes."""
        size = self.page_size
        if size == 1:
            return sum([work.tokens for work in works])
        return sum([-(-(w.start + w.tokens) // size) + (-w.start // size) for w in works])

    def finds_prefill(self, works: list[Work], pages: int, opening: int) -> bool:
        """Whether there are pages for a prefill batch, evicting what it may come to need.

        Args:
            works: the batch.
            pages: that it takes.
            opening: pages that the decodes open which ride along.
        """
        if self.page_size == 1:
            self.find(pages)
        else:
            self.find(sum(work.tokens for work in works) + self.page_size * len(works))
        return pages + opening <= self.blocks.free + self.evictable // self.page_size

    def finds_decode(self, opening: int) -> bool:
        """Whether there are pages for the `opening` decodes that open one, evicting for them."""
        if opening > self.blocks.free:
            self.find(opening * self.page_size)
        return opening <= self.blocks.free

    def take_decode(self, opening: int, live: int) -> None:
        """One token for each of `live` decodes; `opening` pages of them are new."""
        if live > self.blocks.free:
            self.find(live * self.page_size)  # as if each opened a page
        self.take(opening)

    def take(self, pages: int) -> None:
        """Take pages that were found."""
        if pages > self.blocks.free:
            raise RuntimeError(f"{pages} KV pages are wanted where {self.blocks.free} are free")
        self.blocks.take(pages)

    # Keeping and giving back

    def keep(self, request: Request) -> None:
        """What is computed of it is cached, and stays locked."""
        if self.radix is not None:
            self._insert(self.radix, request)

    def finish(self, request: Request) -> None:
        """It has all its tokens: cached up to the last but one, and given up."""
        if self.radix is not None:
            tokens, held = self._held[request]
            self._insert(self.radix, request)
            prompt = self.floor(request.prompt)
            if 0 < prompt < self.floor(request.computed) and held.end != prompt:
                self.radix.insert(tokens, prompt)  # an end of its own
        self._release(request)

    def retract(self, request: Request) -> None:
        """It loses what is its own; what it shares stays in the tree, and nothing is added."""
        self._release(request)

    def _insert(self, radix: RadixCache, request: Request) -> None:
        """Cache what is computed of it; slots of what was cached already are given back."""
        tokens, held = self._held[request]
        node, known = radix.insert(tokens, request.computed, held)
        self.blocks.free += (known - held.end) // self.page_size
        self._held[request] = tokens, node

    def _release(self, request: Request) -> None:
        self.blocks.release(request, request.computed, 0)
        if self.radix is not None:
            _, node = self._held.pop(request)
            self.blocks.take(node.end // self.page_size)  # these pages are the tree's
            self.radix.unlock(node)
