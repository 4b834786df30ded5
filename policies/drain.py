"""The drain lifecycle: a batch forms, runs until its longest request ends, and only then the next.

In a padded batch a request that has ended keeps its row, still computed, in vain; in a packed one
it keeps only its seat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from policies.grouping import Fcfs, Grouping
from policies.layout import Padding
from serving.blocks import Blocks
from serving.queue import Queue
from serving.recorder import ADMIT, CHUNK, FINISH, FIRST, LEAVE, Recorder
from serving.request import Request, Status
from serving.step import NEW, PACKED, Features, Layout, Padded, Step, Wait, Work, packed_features


class Activations(NamedTuple):
    """Device memory that a batch's activations share with its KV cache, bytes."""

    free_bytes: int  # for both
    block_bytes: int
    slot_bytes: int


class Footprint:
    """The memory of a batch: KV blocks for all it will ever hold, and the slots of its prefill."""

    def __init__(self, blocks: int, slots: int) -> None:
        self.blocks = blocks
        self.slots = slots


class DrainRoom:
    """The batch that is being formed: does it still fit the seats and the memory with one more?"""

    def __init__(self, planner: Drain) -> None:
        self._planner = planner
        self.requests: list[Request] = []
        self._longest_prompt = 0
        self._longest_output = 0
        self._packed = Footprint(0, 0)

    @property
    def seats(self) -> int:
        """Seats that are free."""
        return self._planner.max_num_seqs - len(self.requests)

    @property
    def taken(self) -> int:
        """Requests in the batch so far."""
        return len(self.requests)

    def slots(self, request: Request) -> int:
        """Prompt slots of the batch, padding included, if the request joined too."""
        return self.grown(request).slots

    def fits(self, request: Request) -> bool:
        """Whether there is a seat and memory for it too."""
        return self.seats > 0 and self._planner.holds(self.grown(request))

    def take(self, request: Request) -> None:
        """It joins the batch.

        Raises:
            ValueError: it was taken before, or it does not fit.
        """
        if request.status is not Status.WAITING:
            raise ValueError(
                f"the policy takes request {request.index} twice: pop it from the queue first"
            )
        if not self.fits(request):
            raise ValueError(
                f"the policy takes request {request.index}, for which there is no seat or no "
                "memory: ask room.fits(request) first"
            )
        request.status = Status.RUNNING
        self._packed = Footprint(
            self._packed.blocks + self._planner.blocks.ceil(request.prompt + request.output),
            self._packed.slots + request.prompt,
        )
        self._longest_prompt = max(self._longest_prompt, request.prompt)
        self._longest_output = max(self._longest_output, request.output)
        self.requests.append(request)

    def grown(self, request: Request) -> Footprint:
        """The memory of the batch if the request joined too."""
        planner = self._planner
        if planner.padding is None:
            own = planner.blocks.ceil(request.prompt + request.output)
            return Footprint(self._packed.blocks + own, self._packed.slots + request.prompt)
        width = planner.padding.width(max(self._longest_prompt, request.prompt))
        output = max(self._longest_output, request.output)
        rows = len(self.requests) + 1
        return Footprint(rows * planner.blocks.ceil(width + output), rows * width)

    def footprint(self) -> Footprint:
        """The memory of the batch as it stands."""
        planner = self._planner
        if planner.padding is None:
            return self._packed
        width, rows = self.width(), len(self.requests)
        return Footprint(rows * planner.blocks.ceil(width + self._longest_output), rows * width)

    def width(self) -> int:
        """Columns of the padded batch, tokens; 0 for a packed one."""
        padding = self._planner.padding
        return 0 if padding is None else padding.width(self._longest_prompt)


class Batch:
    """Rows that started together, and how many outputs each has by now (all the same)."""

    def __init__(self, rows: Sequence[Request], width: int, blocks: int) -> None:
        self.rows = tuple(rows)
        self.width = width  # 0: packed
        self.blocks = blocks
        self.layout: Layout = Padded(width, self.rows) if width else PACKED
        self.generated = 0  # outputs of each live row
        self.live = len(self.rows)
        self.context = sum(r.prompt for r in self.rows)  # of the live rows, with their outputs
        places = sorted(enumerate(self.rows), key=lambda place: -place[1].output)
        self._by_output = places  # (row, request), who ends next is last
        self._longest = list(accumulate((r.prompt for _, r in places), max))  # of the first n

    @property
    def over(self) -> bool:
        """Whether every row has ended."""
        return not self._by_output

    def until_end(self) -> int:
        """Steps from now on until somebody ends, that step included."""
        return self._by_output[-1][1].output - self.generated

    def longest(self) -> int:
        """Tokens of the longest live row, with its outputs."""
        return self._longest[self.live - 1] + self.generated

    def emit(self, steps: int = 1) -> Sequence[Request]:
        """Every live row emits `steps` tokens; returns those that have all of theirs now."""
        self.generated += steps
        self.context += self.live * steps
        ended = []
        while self._by_output and self._by_output[-1][1].output <= self.generated:
            place = self._by_output.pop()
            request = place[1]
            request.computed = request.prompt + max(request.output - 1, 0)
            request.sampled = request.output
            self.live -= 1
            self.context -= request.prompt + self.generated
            ended.append(place)
        return [request for _, request in sorted(ended, key=lambda place: place[0])]


class BatchDecodes:
    """The decodes of one step of a batch."""

    def __init__(self, batch: Batch, generated: int) -> None:
        self.batch = batch
        self.generated = generated

    def members(self) -> Sequence[tuple[Request, int]]:
        """Rows that emit a token, with their useful context, O(rows)."""
        computed = self.generated - 1
        rows = self.batch.rows
        return [(r, r.prompt + computed) for r in rows if r.output > self.generated]

    def opening_run(self, steps: int) -> Sequence[int]:
        """None: a batch has taken all its blocks."""
        return [0] * steps


class Ending:
    """What the end of a planned step will bring."""

    def __init__(self, number: int, requests: Sequence[Request], last: bool) -> None:
        self.id = number
        self.requests = requests
        self.last = last  # of its batch


@mypyc_attr(allow_interpreted_subclasses=True)
class Drain:
    """Forms a batch, runs its prompts in one step, then decodes until the last row ends."""

    def __init__(
        self,
        max_num_seqs: int,
        padding: Padding | None,
        blocks: Blocks,
        queue: Queue,
        recorder: Recorder,
        grouping: Grouping | None = None,
        activations: Activations | None = None,
    ) -> None:
        """Begin empty; `padding` None stores batches packed."""
        self.max_num_seqs = max_num_seqs
        self.padding = padding
        self.blocks = blocks
        self.queue = queue
        self.grouping: Grouping = grouping or Fcfs()
        self.activations = activations
        self.wake: float | None = None
        self._log = recorder.log
        self._batch: Batch | None = None
        self._flight: deque[Ending] = deque()
        self._next = 0

    def refusal(self, request: Request) -> str | None:
        """One row of it, padded as it would be alone, is too large for the memory."""
        need = DrainRoom(self).grown(request)
        if self.holds(need):
            return None
        width = 0 if self.padding is None else self.padding.width(request.prompt)
        shape = f"padded to {width}" if width else f"of {request.prompt} tokens"
        return (
            f"one row {shape} with {request.output} outputs needs {need.blocks} KV blocks and "
            f"{need.slots} slots, over the memory ({self.blocks.usable} blocks)"
        )

    def holds(self, need: Footprint) -> bool:
        """Whether the memory of an idle engine holds a batch."""
        if need.blocks > self.blocks.usable:
            return False
        space = self.activations
        if space is None:
            return True
        return need.blocks * space.block_bytes + need.slots * space.slot_bytes <= space.free_bytes

    def add(self, request: Request) -> None:
        """It waits for the next batch."""
        self.queue.push(request)

    def waiting(self) -> int:
        """Requests that wait."""
        return len(self.queue)

    def plan(self, now: float) -> Step | Wait:
        """The next step of the batch that runs, or the first of a new one."""
        self.wake = None
        batch = self._batch
        if batch is not None:
            return Wait() if batch.over else self._decode(batch)
        room = DrainRoom(self)
        wait = self.grouping.form(self.queue, room, now)
        if not room.taken:
            return wait or Wait()
        need = room.footprint()
        self.blocks.take(need.blocks)
        self._batch = Batch(room.requests, room.width(), need.blocks)
        return self._prefill(self._batch)

    def _prefill(self, batch: Batch) -> Step:
        works = tuple(Work(r, 0, r.prompt, r.output > 0) for r in batch.rows)
        features = packed_features(works, 0, 0, 0)
        if batch.width:
            features = padded_features(features, len(works), batch.width)
        number = self._next
        for row, work in enumerate(works):
            request = work.request
            request.row = row if batch.width else -1
            self._log((number, request.index, ADMIT, 0, request.row))
            self._log((number, request.index, CHUNK, request.prompt, request.row))
            if work.samples:
                self._log((number, request.index, FIRST, 1, request.row))
        return self._step(batch, works, BatchDecodes(batch, 1 << 62), features)

    def _decode(self, batch: Batch) -> Step:
        live, generated = batch.live, batch.generated
        if batch.width:
            rows, longest = len(batch.rows), batch.width + generated
            computed = rows * longest
        else:
            rows, longest, computed = live, batch.longest(), batch.context
        sums = (0, live, 0, rows, 0, 0, batch.context, computed, 0, rows, rows, 0, longest)
        return self._step(batch, (), BatchDecodes(batch, generated), NEW(Features, sums))

    def _step(
        self, batch: Batch, works: tuple[Work, ...], decodes: BatchDecodes, features: Features
    ) -> Step:
        number, live = self._next, batch.live
        self._next = number + 1
        self._flight.append(Ending(number, batch.emit(), batch.over))
        waiting, used = len(self.queue), self.blocks.used
        fields = (number, batch.layout, works, decodes, (), features, waiting, live, used)
        return NEW(Step, fields)

    def complete(self, step: Step) -> Sequence[Request]:
        """The oldest planned step has ended; after a batch's last its rows and memory are free."""
        ending = self._flight.popleft()
        if ending.id != step.id:
            raise RuntimeError(f"step {ending.id} ends before step {step.id}")
        for request in ending.requests:
            request.status = Status.FINISHED
            self._log((ending.id, request.index, FINISH, request.output, request.row))
        if ending.last and self._batch is not None:
            self._leave(self._batch, ending.id)
        return ending.requests

    def _leave(self, batch: Batch, number: int) -> None:
        steps = max(batch.generated, 1)
        for request in batch.rows:
            vain = steps - max(request.output, 1)
            self._log((number, request.index, LEAVE, vain, request.row))
            if self.blocks.listener is not None:
                self.blocks.listener.released(request, 0)
        self.blocks.free += batch.blocks
        self._batch = None

    def run_length(self, most: int) -> int:
        """Decode steps until somebody's last token."""
        batch = self._batch
        if batch is None or batch.generated < 2 or any(e.requests for e in self._flight):
            return 1
        return 1 + min(batch.until_end(), most - 1)

    def advance(self, step: Step, steps: int) -> tuple[Step, Sequence[int]]:
        """Count the last planned step as `steps` equal ones."""
        batch = self._batch
        if steps > 1 and batch is not None:
            ended = batch.emit(steps - 1)
            last = step.id + steps - 1
            self._flight[-1] = Ending(last, ended, batch.over)
            self._next = last + 1
            step = NEW(Step, (last, *step[1:]))
        return step, ()


def padded_features(f: Features, rows: int, width: int) -> Features:
    """The sums of a prefill of `rows` prompts when every row is padded to `width`."""
    return f._replace(
        prefill_slots=rows * width,
        prefill_computed_pairs=rows * width * (width + 1) // 2,
        sampled_rows=rows,
        prefill_kv=rows * width,
    )
