"""The configuration of a run: every flag as a field, checked, and given back by every record."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies.compose import PolicyChoiceError


class RunConfig(BaseModel):
    """What a run was asked to do. None means: not asked for, the default stands."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # the trace
    trace: str | None = None
    format: str | None = None
    limit: int | None = Field(None, ge=1)
    rate_scale: float = Field(1.0, gt=0)
    seed: int = 0
    on_bad_row: str = "error"
    # who runs next
    policy: str = "chunked-prefill"
    layout: str | None = None
    lifecycle: str | None = None
    order: str | None = None
    like: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    bucket_bounds: tuple[int, ...] | None = None
    max_wait_ms: float | None = None
    enable_chunked_prefill: bool | None = None
    long_prefill_token_threshold: int | None = Field(None, ge=0)
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    watermark: float | None = None
    # memory
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    gpu_memory_utilization: float | None = None
    # time
    cost: str | None = None
    step_ms: float | None = None
    model: str | None = None
    hardware: str | None = None
    tp: int | None = Field(None, ge=1)
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    cuda_graphs: bool = False
    jump: bool = True

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Check and build.

        Raises:
            PolicyChoiceError: names the flag, what was given and what it takes.
        """
        try:
            return cls(**fields)
        except ValidationError as error:
            first = error.errors()[0]
            flag = "--" + ".".join(str(part) for part in first["loc"]).replace("_", "-")
            shown = first.get("input")
            raise PolicyChoiceError(f"{flag} {shown}: {first['msg'].lower()}") from error

    def with_defaults(self, defaults: dict[str, Any]) -> Self:
        """The same with `defaults` where nothing was asked for."""
        missing = {k: v for k, v in defaults.items() if getattr(self, k) is None}
        return self.model_copy(update=missing)
