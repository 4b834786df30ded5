"""A request trace: columns of arrivals and lengths, and what it needs to say of itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError


@dataclass(frozen=True, eq=False)
class BlockHashes:
    """Hashes of each prompt's blocks, ragged: row i is ids[offsets[i]:offsets[i + 1]].

    Equal ids in two prompts mean equal tokens up to and including that block. The last block of
    a prompt may be shorter than `block_tokens`.
    """

    ids: NDArray[np.int64]
    """All ids, row after row, shape [total]."""
    offsets: NDArray[np.int64]
    """Where each row begins, shape [requests + 1]."""
    block_tokens: int
    """Tokens that one id covers (512 in Mooncake's traces, 16 in Qwen-Bailian's)."""

    def row(self, i: int) -> NDArray[np.int64]:
        """The ids of request `i`, shape [ceil(prompt / block_tokens)]."""
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def take(self, rows: NDArray[np.int64]) -> BlockHashes:
        """The hashes of `rows`, in that order."""
        parts = [self.row(int(i)) for i in rows]
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(p) for p in parts], out=offsets[1:])
        ids = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return BlockHashes(ids.astype(np.int64, copy=False), offsets, self.block_tokens)


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests as columns, sorted by arrival, the first arrival at 0.

    All columns have shape [requests].
    """

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    priority: NDArray[np.int64] | None = None
    hashes: BlockHashes | None = None
    tenant: NDArray[np.object_] | None = None
    name: str = "trace"
    notes: tuple[str, ...] = field(default=())
    """What reading or changing it did that a user should know (sorted, rebased, skipped rows)."""

    def __post_init__(self) -> None:
        """Check the columns.

        Raises:
            TraceError: a column of another length, times that fall, a length below its minimum.
        """
        n = len(self.arrival_s)
        for label in ("prompt_tokens", "output_tokens", "priority", "tenant"):
            column = getattr(self, label)
            if column is not None and len(column) != n:
                raise TraceError(f"{self.name}: {label} has {len(column)} rows, arrival_s has {n}")
        if self.hashes is not None and len(self.hashes.offsets) != n + 1:
            rows = len(self.hashes.offsets) - 1
            raise TraceError(f"{self.name}: hash_ids has {rows} rows, arrival_s has {n}")
        if n and (self.arrival_s[0] < 0 or bool(np.any(self.arrival_s[1:] < self.arrival_s[:-1]))):
            raise TraceError(f"{self.name}: arrival_s must start at 0 or later and never fall")
        if n and int(self.prompt_tokens.min()) < 1:
            raise TraceError(f"{self.name}: a prompt has fewer than 1 token")
        if n and int(self.output_tokens.min()) < 0:
            raise TraceError(f"{self.name}: an output has fewer than 0 tokens")

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.arrival_s)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    @property
    def longest(self) -> int:
        """The largest prompt + output, tokens."""
        return int((self.prompt_tokens + self.output_tokens).max()) if len(self) else 0

    def noted(self, *notes: str) -> Trace:
        """The same trace with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def take(self, rows: NDArray[np.int64]) -> Trace:
        """The requests `rows` (indices, rising), arrivals as they are."""
        return replace(
            self,
            arrival_s=self.arrival_s[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            priority=None if self.priority is None else self.priority[rows],
            tenant=None if self.tenant is None else self.tenant[rows],
            hashes=None if self.hashes is None else self.hashes.take(rows),
        )

    def head(self, limit: int) -> Trace:
        """The first `limit` requests."""
        return self.take(np.arange(min(limit, len(self)), dtype=np.int64))

    def at_rate(self, scale: float) -> Trace:
        """The same requests `scale` times as fast (all arrival times divided by `scale`).

        Raises:
            TraceError: a scale that is not a positive finite number.
        """
        if not (scale > 0 and np.isfinite(scale)):
            raise TraceError(f"rate scale must be a positive number, not {scale:g}")
        return replace(self, arrival_s=self.arrival_s / scale)
