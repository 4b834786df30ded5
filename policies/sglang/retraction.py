"""Who loses memory when the decodes cannot all have their next token (`retract_decode`)."""

from __future__ import annotations

from collections.abc import Callable

from policies.sglang.batch import RunningBatch
from policies.sglang.memory import Memory
from policies.sglang.ratio import RETRACT_STEPS, NewTokenRatio
from serving.request import Request


def retract(
    running: RunningBatch,
    memory: Memory,
    ratio: NewTokenRatio,
    enough: Callable[[], bool],
    keep: int = 1,
) -> list[Request]:
    """Take requests out until there is memory enough: at least one, where more than `keep` run.

    The fewest outputs go first, among those the longest prompt, then the latest in the batch. The
    batch is left in the order of whom to keep longest, and the ratio starts from what they need.

    Args:
        running: the running batch, nobody in it ended.
        memory: where they hold their tokens.
        ratio: the new-token ratio, which is set anew.
        enough: whether memory suffices for those that are left.
        keep: how many stay, come what may.

    Returns:
        Those taken out, in that order.
    """
    order = sorted(running.in_order(), key=lambda r: (running.outputs(r), -r.prompt), reverse=True)
    victims: list[Request] = []
    while len(order) > keep and not (victims and enough()):
        victim = order.pop()
        running.leave(victim)
        memory.retract(victim)
        memory.find(RETRACT_STEPS * len(order))
        victims.append(victim)
    running.reorder(order)
    ratio.after_retraction((running.outputs(r), r.output) for r in order)
    return victims
