"""The tokens of all requests on the device: prompts drawn from a seed, outputs as they come."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from traces.trace import BlockHashes, Trace

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Tokens:
    """One flat buffer, request after request: prompt, then output, then one cell to spare.

    Sampled tokens are written here by the device and read from here by the next step, so a step
    can be prepared before the tokens of the one before are known.

    Args:
        prompts, outputs: lengths, [requests].
        vocab: ids are below this.
        seed: of the prompts.
        hashes: blocks of the prompts; equal hashes become equal tokens.
    """

    def __init__(
        self,
        prompts: NDArray[np.int64],
        outputs: NDArray[np.int64],
        vocab: int,
        seed: int = 0,
        hashes: BlockHashes | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.prompts, self.outputs = prompts, outputs
        self.offsets = np.concatenate(([0], np.cumsum(prompts + outputs + 1)))
        """Where each request begins; the last is a cell that nobody reads."""
        ids = np.zeros(int(self.offsets[-1]) + 1, np.int32)
        position = np.arange(int(prompts.sum())) - np.repeat(np.cumsum(prompts) - prompts, prompts)
        request = np.repeat(np.arange(len(prompts)), prompts)
        cells = self.offsets[request] + position
        if hashes is None:
            block, place = request, position
        else:
            # a block's hash speaks for the whole prompt up to its end: place within it is enough
            block = hashes.ids[hashes.offsets[request] + position // hashes.block_tokens]
            place = position % hashes.block_tokens
        ids[cells] = _draw(block, place, seed) % np.uint64(vocab)
        self.ids: Tensor = torch.from_numpy(ids).to(device)

    @classmethod
    def of(
        cls, trace: Trace, vocab: int, seed: int = 0, device: torch.device | str = "cpu"
    ) -> Tokens:
        """The tokens of a trace."""
        return cls(trace.prompt_tokens, trace.output_tokens, vocab, seed, trace.hashes, device)

    @property
    def nowhere(self) -> int:
        """A cell that nobody reads."""
        return int(self.offsets[-1])

    def prompt(self, request: int) -> NDArray[np.int32]:
        """A request's prompt, [prompt]."""
        return self._read(int(self.offsets[request]), int(self.prompts[request]))

    def output(self, request: int, count: int | None = None) -> NDArray[np.int32]:
        """A request's output tokens, the first `count` of them, [output]."""
        first = int(self.offsets[request]) + int(self.prompts[request])
        return self._read(first, int(self.outputs[request]) if count is None else count)

    def _read(self, first: int, count: int) -> NDArray[np.int32]:
        found: NDArray[np.int32] = self.ids[first : first + count].cpu().numpy()
        return found


def _draw(block: NDArray[np.int64], place: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """Pseudo-random numbers that depend on the three arguments only (splitmix64, Steele 2014)."""
    with np.errstate(over="ignore"):
        key = _mix(block.astype(np.uint64) + _mix(np.full(1, seed, np.uint64)))
        return _mix(key + place.astype(np.uint64) * _GOLDEN)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
