"""A radix cache over token sequences, as SGLang keeps one: match, lock, insert, evict leaves.

No token is ever looked at. A sequence says only who owns the token at a position, and owners are
chained: where two sequences have the same owner at a position, all tokens up to it are equal. So
what two sequences share is found by bisection, and a node is a range of positions.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from serving.request import Request

Owner = int | tuple[int]
"""A hash, or the index of the one request that has the token."""


class Tokens:
    """A request's tokens: those that its hashes cover are shared, the rest are its own."""

    __slots__ = ("_hashes", "_own", "_per_hash", "_shared")

    def __init__(self, request: Request, hash_tokens: int) -> None:
        """Take the sequence of a request.

        Args:
            request: its hashes, chained, one for every `hash_tokens` tokens of the prompt; the
                last may cover fewer.
            hash_tokens: tokens that one hash covers.
        """
        self._hashes: Sequence[int] = request.hashes
        self._per_hash = hash_tokens
        self._shared = min(request.prompt, len(request.hashes) * hash_tokens)
        self._own = (request.index,)

    def owner(self, position: int) -> Owner:
        """Whose token it is; an equal owner in another sequence means that all before are equal."""
        if position < self._shared:
            return self._hashes[position // self._per_hash]
        return self._own


class Node:
    """Tokens `start` to `end` of every sequence that passes through it."""

    __slots__ = ("children", "end", "key", "locks", "parent", "queued", "source", "stamp", "start")

    def __init__(
        self, parent: Node | None, key: Owner, start: int, end: int, source: Tokens | None
    ) -> None:
        self.parent = parent
        self.key = key  # owner of the last token of its first page: the parent has it under this
        self.start = start
        self.end = end
        self.source = source
        self.children: dict[Owner, Node] = {}
        self.locks = 0
        self.stamp = 0  # when it was last used
        self.queued = False  # has an entry among the leaves to evict


class RadixCache:
    """Sequences in whole pages, sharing what they have in common.

    The cache counts tokens; whose memory they are in, and how much of it is free, is its user's
    affair. All verbs cost O(nodes on the path), `evict` O(log leaves) a leaf.
    """

    def __init__(self, page_size: int = 1, hash_tokens: int = 1) -> None:
        """Begin empty.

        Args:
            page_size: tokens of a KV page; ends of nodes are multiples of it.
            hash_tokens: tokens of a prompt that one of a request's hashes covers.
        """
        self.page_size = page_size
        self.hash_tokens = hash_tokens
        self.root = Node(None, 0, 0, 0, None)
        self.tokens = 0  # in all nodes
        self.evictable = 0  # tokens in nodes that nobody locks
        self._clock = 0
        self._leaves: list[tuple[int, Node]] = []  # heap of unlocked leaves; stamps may be old

    def sequence(self, request: Request) -> Tokens:
        """A request's tokens, as `match` and `insert` take them."""
        return Tokens(request, self.hash_tokens)

    def match(self, tokens: Tokens, upto: int) -> Node:
        """The end of the longest cached head of a sequence, and at most `upto` tokens of it.

        A node that is shared in part is split there. The path counts as used, leaf last.

        Returns:
            The node; its `end` is how many tokens match, 0 for the root.
        """
        upto -= upto % self.page_size
        node, path = self.root, []
        while (child := self._child(node, tokens, upto)) is not None:
            node = self._shared_part(child, tokens, upto)
            path.append(node)
        for used in path:
            self._touch(used)
        return node

    def insert(self, tokens: Tokens, upto: int, held: Node | None = None) -> tuple[Node, int]:
        """Enter the first `upto` tokens of a sequence, in whole pages.

        Args:
            tokens: the sequence.
            upto: how many of its tokens.
            held: a locked node on the sequence's path, no further than `upto`: the walk begins
                there, and the lock moves to the node that is returned.

        Returns:
            The node at their end, and how many of them were cached before.
        """
        upto -= upto % self.page_size
        node = self.root
        if held is not None and held is not node:
            self._use(held)
            node = held
        while (child := self._child(node, tokens, upto)) is not None:
            self._touch(child)
            node = self._shared_part(child, tokens, upto)
        if held is not None:
            self._lock(node, held)
        known = node.end
        if known < upto:
            node = self._add(node, tokens, upto, locks=int(held is not None))
        return node, known

    def _use(self, node: Node) -> None:
        """The path to a node counts as used, leaf last."""
        path = []
        while node.parent is not None:
            path.append(node)
            node = node.parent
        for used in reversed(path):
            self._touch(used)

    def lock(self, node: Node) -> None:
        """Keep a node and all above it until `unlock`."""
        self._lock(node, self.root)

    def _lock(self, node: Node, above: Node) -> None:
        """Lock the path from `node` up to `above`, which is left as it is."""
        while node is not above and node.parent is not None:
            if not node.locks:
                self.evictable -= node.end - node.start
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock` of this node."""
        while node.parent is not None:
            if not node.locks:
                raise RuntimeError("a radix node is unlocked more often than locked")
            node.locks -= 1
            if not node.locks:
                self.evictable += node.end - node.start
                self._enqueue(node)
            node = node.parent

    def evict(self, count: int) -> int:
        """Throw out whole unlocked leaves, least recently used first, until `count` tokens go.

        Returns:
            How many are gone: more than asked for where the last leaf was longer, fewer where
            everything else is locked.
        """
        gone, leaves = 0, self._leaves
        while gone < count and leaves:
            stamp, node = heapq.heappop(leaves)
            node.queued = False
            if node.locks or node.children:
                continue
            if stamp != node.stamp:
                self._enqueue(node)
                continue
            gone += node.end - node.start
            self._remove(node)
        self.evictable -= gone
        self.tokens -= gone
        return gone

    # The parts of these

    def _key(self, tokens: Tokens, start: int) -> Owner:
        """What tells the pages that may begin at `start` apart."""
        return tokens.owner(start + self.page_size - 1)

    def _child(self, node: Node, tokens: Tokens, upto: int) -> Node | None:
        """The child that shares at least a page with the sequence."""
        if node.end >= upto:
            return None
        children = node.children
        return children.get(self._key(tokens, node.end)) if children else None

    def _shared_part(self, node: Node, tokens: Tokens, upto: int) -> Node:
        """The node, or its upper part where only that is shared."""
        end = self._common(node, tokens, min(node.end, upto))
        return node if end == node.end else self._split(node, end)

    def _common(self, node: Node, tokens: Tokens, most: int) -> int:
        """Where a sequence that shares the node's first page leaves it, in whole pages."""
        source, size = node.source, self.page_size
        assert source is not None
        if source is tokens or source.owner(most - 1) == tokens.owner(most - 1):
            return most
        low, high = node.start // size + 1, most // size  # pages: equal up to low, not to high
        while high - low > 1:
            middle = (low + high) // 2
            last = middle * size - 1
            if source.owner(last) == tokens.owner(last):
                low = middle
            else:
                high = middle
        return low * size

    def _split(self, node: Node, at: int) -> Node:
        """Cut a node in two; both halves count as used, the lower one last. Returns the upper."""
        parent, source = node.parent, node.source
        assert parent is not None
        assert source is not None
        upper = Node(parent, node.key, node.start, at, source)
        upper.locks = node.locks
        parent.children[node.key] = upper
        node.key = self._key(source, at)
        upper.children[node.key] = node
        node.parent, node.start = upper, at
        self._touch(upper)
        self._touch(node)
        return upper

    def _add(self, parent: Node, tokens: Tokens, end: int, locks: int) -> Node:
        node = Node(parent, self._key(tokens, parent.end), parent.end, end, tokens)
        parent.children[node.key] = node
        self._touch(node)
        self.tokens += end - parent.end
        node.locks = locks
        if not locks:
            self.evictable += end - parent.end
            self._enqueue(node)
        return node

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        self._enqueue(parent)

    def _touch(self, node: Node) -> None:
        self._clock += 1
        node.stamp = self._clock

    def _enqueue(self, node: Node) -> None:
        """Enter a node among the leaves to evict, if it is one."""
        if node.queued or node.locks or node.children or node.parent is None:
            return
        node.queued = True
        heapq.heappush(self._leaves, (node.stamp, node))
