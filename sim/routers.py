"""Which replica a request goes to, decided when it arrives.

A router sees each replica as of its last ended step: how many of the requests sent there are not
finished, and how many KV blocks its last plan holds. What it has sent since, it knows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from operator import attrgetter
from random import Random

from serving.request import Request
from sim.engine import Replica, Router

IMBALANCE = 32
"""Requests by which the busiest replica may lead the idlest before affinity gives way, as in
SGLang's router (`balance_abs_threshold`)."""

outstanding = attrgetter("outstanding")


def round_robin() -> Router:
    """One after the other."""
    turn = count()
    return lambda request, replicas: replicas[next(turn) % len(replicas)]


def uniform(seed: int) -> Router:
    """Any, each with the same chance."""
    draw = Random(seed).random
    return lambda request, replicas: replicas[int(draw() * len(replicas))]


def least_requests(request: Request, replicas: Sequence[Replica]) -> Replica:
    """Whoever has the fewest unfinished requests, the first of equals."""
    return min(replicas, key=outstanding)


def power_of_two(seed: int) -> Router:
    """Of two different ones drawn at random, whoever has fewer unfinished requests.

    Mitzenmacher, "The power of two choices in randomized load balancing" (IEEE TPDS, 2001).
    """
    draw = Random(seed).random

    def route(request: Request, replicas: Sequence[Replica]) -> Replica:
        many = len(replicas)
        first = int(draw() * many)
        second = (first + 1 + int(draw() * (many - 1))) % many
        return least_requests(request, (replicas[first], replicas[second]))

    return route


def least_kv(capacity: Sequence[int | None]) -> Router:
    """Whoever's KV cache is least full, of equals who has the fewest unfinished requests.

    Args:
        capacity: usable KV blocks of each replica; None where memory plays no part.
    """
    sizes = [size or 1 for size in capacity]

    def route(request: Request, replicas: Sequence[Replica]) -> Replica:
        now = request.arrival
        return min(
            zip(replicas, sizes, strict=True),
            key=lambda one: (one[0].kv_used(now) / one[1], one[0].outstanding),
        )[0]

    return route


def prefix_affinity(hashes: int) -> Router:
    """Where the longest prefix of the prompt was sent last, unless that is too busy.

    A prompt of which nothing was seen before goes to whoever has the fewest unfinished requests,
    and so does any while the busiest replica has over `IMBALANCE` more of them than the idlest.

    Args:
        hashes: block hashes that the router remembers, the least recently sent forgotten first:
            as many as the replicas' KV caches hold.
    """
    sent: OrderedDict[int, Replica] = OrderedDict()

    def route(request: Request, replicas: Sequence[Replica]) -> Replica:
        chosen = idlest = least_requests(request, replicas)
        busiest = max(replicas, key=outstanding)
        if busiest.outstanding - idlest.outstanding <= IMBALANCE:
            for key in request.hashes:  # chained: one that is not known ends the prefix
                if key not in sent:
                    break
                chosen = sent[key]
        for key in reversed(request.hashes):  # a prefix outlives what follows it
            sent[key] = chosen
            sent.move_to_end(key)
        while len(sent) > hashes:
            sent.popitem(last=False)
        return chosen

    return route


ROUTERS: dict[str, Callable[..., Router]] = {
    "round-robin": lambda **facts: round_robin(),
    "random": lambda **facts: uniform(facts["seed"]),
    "least-requests": lambda **facts: least_requests,
    "least-kv": lambda **facts: least_kv(facts["capacity"]),
    "power-of-two": lambda **facts: power_of_two(facts["seed"]),
    "prefix-affinity": lambda **facts: prefix_affinity(facts["hashes"]),
}
"""Routers by name; each is made from `seed`, `capacity` and `hashes`, of which it takes its own."""
