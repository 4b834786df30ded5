"""The radix cache does what a tree of single tokens does, which is written out here to compare."""

from __future__ import annotations

import random

import pytest

from serving.radix import Node, RadixCache
from serving.request import Request

Word = tuple[tuple[int, int], ...]  # tokens, as (whose, position)


class Plain:
    """A node that holds its tokens one by one."""

    def __init__(self, parent: Plain | None, tokens: Word) -> None:
        self.parent = parent
        self.tokens = tokens
        self.children: list[Plain] = []
        self.locks = 0
        self.stamp = 0

    def depth(self) -> int:
        return len(self.tokens) + (self.parent.depth() if self.parent else 0)


class PlainTree:
    """The same verbs by walking over everything."""

    def __init__(self, page: int) -> None:
        self.page = page
        self.root = Plain(None, ())
        self.clock = 0

    def touch(self, node: Plain) -> None:
        self.clock += 1
        node.stamp = self.clock

    def shared(self, a: Word, b: Word) -> int:
        n = 0
        while n < min(len(a), len(b)) and a[n] == b[n]:
            n += 1
        return n // self.page * self.page

    def descend(self, node: Plain, rest: Word) -> tuple[Plain, int] | None:
        for child in node.children:
            n = self.shared(child.tokens, rest)
            if n:
                return child, n
        return None

    def split(self, node: Plain, n: int) -> Plain:
        assert node.parent is not None
        upper = Plain(node.parent, node.tokens[:n])
        upper.locks = node.locks
        node.parent.children.remove(node)
        node.parent.children.append(upper)
        upper.children.append(node)
        node.parent, node.tokens = upper, node.tokens[n:]
        self.touch(upper)
        self.touch(node)
        return upper

    def match(self, word: Word) -> Plain:
        word = word[: len(word) // self.page * self.page]
        node, path = self.root, []
        while (found := self.descend(node, word)) is not None:
            child, n = found
            node = child if n == len(child.tokens) else self.split(child, n)
            word = word[n:]
            path.append(node)
        for used in path:
            self.touch(used)
        return node

    def insert(self, word: Word) -> tuple[Plain, int]:
        word = word[: len(word) // self.page * self.page]
        node, known = self.root, 0
        while (found := self.descend(node, word)) is not None:
            child, n = found
            self.touch(child)
            node = child if n == len(child.tokens) else self.split(child, n)
            word, known = word[n:], known + n
        if word:
            new = Plain(node, word)
            node.children.append(new)
            node = new
            self.touch(new)
        return node, known

    def lock(self, node: Plain | None, by: int) -> None:
        while node is not None:
            node.locks += by
            node = node.parent

    def nodes(self) -> list[Plain]:
        found, todo = [], list(self.root.children)
        while todo:
            node = todo.pop()
            found.append(node)
            todo += node.children
        return found

    def evictable(self) -> int:
        return sum(len(n.tokens) for n in self.nodes() if not n.locks)

    def evict(self, count: int) -> int:
        gone = 0
        while gone < count:
            leaves = [n for n in self.nodes() if not n.locks and not n.children]
            if not leaves:
                break
            victim = min(leaves, key=lambda n: n.stamp)
            assert victim.parent is not None
            victim.parent.children.remove(victim)
            gone += len(victim.tokens)
        return gone


def some_requests(rng: random.Random, count: int, hash_tokens: int) -> list[Request]:
    """Requests whose hashes are paths from the root of a small random trie, as chained ones are."""
    ids: dict[tuple[int, ...], int] = {(): 0}
    made = []
    for index in range(count):
        path: tuple[int, ...] = ()
        hashes = []
        for _ in range(rng.randrange(5)):
            path = (*path, rng.randrange(2))
            hashes.append(ids.setdefault(path, len(ids)))
        prompt = max(1, len(hashes) * hash_tokens + rng.choice((0, -1, 1, 7)))
        made.append(Request(index, 0.0, prompt, 30, hashes=hashes))
    return made


def word(request: Request, hash_tokens: int, upto: int) -> Word:
    """The first tokens of a request, each said to be of the hash that covers it or its own."""
    covered = min(request.prompt, hash_tokens * len(request.hashes))
    return tuple(
        (request.hashes[p // hash_tokens] if p < covered else -1 - request.index, p)
        for p in range(upto)
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("page", "hash_tokens"), [(1, 1), (1, 8), (4, 8), (8, 8), (16, 8), (4, 5)])
def test_it_does_what_a_tree_of_single_tokens_does(page: int, hash_tokens: int, seed: int) -> None:
    rng = random.Random(f"{seed}/{page}/{hash_tokens}")
    cache, plain = RadixCache(page, hash_tokens), PlainTree(page)
    requests = some_requests(rng, 12, hash_tokens)
    locked: list[tuple[Node, Plain]] = []
    running: list[tuple[Request, Node, Plain]] = []  # requests that hold the path to where they are
    for _ in range(250):
        request = rng.choice(requests)
        upto = rng.randrange(1, request.prompt + 20)
        tokens = word(request, hash_tokens, upto)
        deed = rng.random()
        if deed < 0.35:
            node, other = cache.match(cache.sequence(request), upto), plain.match(tokens)
            assert node.end == other.depth()
            if rng.random() < 0.4:
                cache.lock(node)
                plain.lock(other, 1)
                locked.append((node, other))
        elif deed < 0.45:
            cache.lock(node := cache.match(cache.sequence(request), upto))
            plain.lock(other := plain.match(tokens), 1)
            running.append((request, node, other))
        elif deed < 0.6 and running:
            request, node, other = running.pop(rng.randrange(len(running)))
            upto = node.end + rng.randrange(20)
            node, known = cache.insert(cache.sequence(request), upto, node)
            before = other
            other, also = plain.insert(word(request, hash_tokens, upto))
            plain.lock(other, 1)
            plain.lock(before, -1)
            assert (node.end, known) == (other.depth(), also)
            running.append((request, node, other))
        elif deed < 0.75:
            node, known = cache.insert(cache.sequence(request), upto)
            other, also = plain.insert(tokens)
            assert (node.end, known) == (other.depth(), also)
            assert node.end == upto // page * page
        elif deed < 0.9 and locked:
            node, other = locked.pop(rng.randrange(len(locked)))
            cache.unlock(node)
            plain.lock(other, -1)
        else:
            count = rng.randrange(1, 60)
            assert cache.evict(count) == plain.evict(count)
        assert cache.evictable == plain.evictable()
        assert cache.tokens == sum(len(n.tokens) for n in plain.nodes())
    for node in (*(node for node, _ in locked), *(node for _, node, _ in running)):
        cache.unlock(node)
    assert cache.evictable == cache.tokens
    everything = cache.tokens
    assert cache.evict(everything + 1) == everything
    assert (cache.tokens, cache.evictable, cache.root.children) == (0, 0, {})


def test_two_requests_share_their_prefix_and_nothing_else() -> None:
    cache = RadixCache(page_size=1, hash_tokens=10)
    a = Request(0, 0.0, 25, 5, hashes=[1, 2])
    b = Request(1, 0.0, 18, 5, hashes=[1, 3])
    assert cache.insert(cache.sequence(a), 25)[1] == 0
    assert cache.match(cache.sequence(b), 17).end == 10
    assert cache.insert(cache.sequence(b), 18)[1] == 10
    assert cache.tokens == 25 + 8


def test_a_locked_path_stays_and_its_branch_goes() -> None:
    cache = RadixCache(page_size=1, hash_tokens=10)
    a = Request(0, 0.0, 20, 5, hashes=[1])
    b = Request(1, 0.0, 20, 5, hashes=[1])
    cache.insert(cache.sequence(a), 20)
    node, _ = cache.insert(cache.sequence(b), 20)
    cache.lock(node)
    assert cache.evictable == 10
    assert cache.evict(100) == 10
    assert cache.match(cache.sequence(b), 20).end == 20
    assert cache.match(cache.sequence(a), 20).end == 10
    cache.unlock(node)
    assert cache.evict(100) == 20


def test_unlocking_more_often_than_locking_is_an_error() -> None:
    cache = RadixCache()
    node, _ = cache.insert(cache.sequence(Request(0, 0.0, 5, 1)), 5)
    with pytest.raises(RuntimeError, match="more often"):
        cache.unlock(node)


def test_a_long_shared_prefix_costs_as_little_as_a_short_one() -> None:
    """Work is by nodes and bisection, not by token: a million tokens take a moment."""
    cache = RadixCache(page_size=1, hash_tokens=512)
    hashes = list(range(2000))
    first = Request(0, 0.0, 2000 * 512, 1, hashes=hashes)
    cache.insert(cache.sequence(first), first.prompt)
    for index in range(1, 400):
        other = Request(index, 0.0, 2000 * 512, 1, hashes=[*hashes[: 5 * index], -index])
        assert cache.match(cache.sequence(other), other.prompt).end == 5 * index * 512
