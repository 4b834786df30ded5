"""Decodes advanced as one, against the same requests looked at one by one."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from serving.group import DecodeGroup
from serving.request import Request
from tests.strategies import examples


@dataclass(eq=False)
class Plain:
    """What a member has computed, and how many tokens it still wants."""

    request: Request
    computed: int
    wanted: int


@given(data=st.data())
@examples(300)
def test_sums_are_those_of_the_members(data: st.DataObject) -> None:
    """Joining, leaving early, coming back later, several steps at once."""
    group, inside, outside = DecodeGroup(4), list[Plain](), list[Plain]()
    for index in range(data.draw(st.integers(1, 40))):
        act = data.draw(st.sampled_from(["join", "join", "leave", "back", "step", "run"]))
        if act == "join":
            prompt, wanted = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30))
            request = Request(index, 0.0, prompt, wanted + 1)
            request.computed, request.sampled = prompt, 1
            inside.append(Plain(request, prompt, wanted))
            group.join(request)
        elif act == "leave" and inside:
            gone = inside.pop(data.draw(st.integers(0, len(inside) - 1)))
            group.leave(gone.request)
            assert gone.request.computed == gone.computed
            assert gone.request.output - gone.request.sampled == gone.wanted
            outside.append(gone)
        elif act == "back" and outside:
            again = outside.pop(data.draw(st.integers(0, len(outside) - 1)))
            inside.append(again)
            group.join(again.request)
        elif act in ("step", "run") and inside:
            assert group.longest_keys() == max(plain.computed for plain in inside) + 1
            least = min(plain.wanted for plain in inside)
            steps = data.draw(st.integers(1, least)) if act == "run" else 1
            ended = group.advance(steps)
            for plain in inside:
                plain.computed += steps
                plain.wanted -= steps
            assert set(ended) == {plain.request for plain in inside if not plain.wanted}
            inside = [plain for plain in inside if plain.wanted]
        assert group.live == len(inside)
        assert group.context == sum(plain.computed for plain in inside)
        if data.draw(st.booleans()):  # a planner asks before some steps only
            longest = max((plain.computed + 1 for plain in inside), default=0)
            assert group.longest_keys() == longest
            assert not inside or group.tick + group.longest + 1 == longest
