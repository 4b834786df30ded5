"""Running requests one by one, in a step that has not enough for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from policies.admission import Admission
from serving.request import Request

if TYPE_CHECKING:
    from policies.continuous import Continuous


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
