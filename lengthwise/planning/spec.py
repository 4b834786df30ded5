"""What a sweep varies: a YAML file, checked, as cells."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from lengthwise.api import read_trace
from lengthwise.config import RunConfig, read_config
from lengthwise.planning.cells import Cell, hash_of
from policies.names import nearest
from traces import Trace

INSTEAD = {"trace": "trace", "rate_scale": "rates", "seed": "seeds"}
"""Fields that have a place of their own in a spec."""

Some = Field(min_length=1)


class SpecError(ValueError):
    """A sweep that says something else than what can be run."""


class SweepSpec(BaseModel):
    """All combinations of the traces, what is varied, the rates and the seeds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trace: str | Annotated[list[str], Some]
    base: dict[str, Any] = {}
    """Flags of every cell."""
    vary: dict[str, Annotated[list[Any], Some]] = {}
    """Values of a flag, each in cells of its own."""
    rates: Annotated[list[Annotated[float, Field(gt=0, allow_inf_nan=False)]], Some] = [1.0]
    """Arrivals so many times as fast."""
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Some] = [0]
    """Of built-in workloads and of routers; the same in all cells of one seed."""

    @field_validator("base", "vary")
    @classmethod
    def _named(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Names as `RunConfig` has them."""
        known = [name for name in RunConfig.model_fields if name not in INSTEAD]
        named = {name.replace("-", "_"): value for name, value in fields.items()}
        for name in named:
            if name in INSTEAD:
                raise ValueError(f"{name}: give it as {INSTEAD[name]}, beside base and vary")
            if name not in known:
                raise ValueError(f"{name}: {nearest(name, known)}")
        return named

    @classmethod
    def read(cls, path: Path) -> SweepSpec:
        """The spec in a YAML, TOML or JSON file.

        Raises:
            ValueError: no such file, or a field that says nothing, with its name.
        """
        try:
            return cls.model_validate(read_config(path, "SPEC"))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            message = first["msg"].removeprefix("Value error, ")
            raise SpecError(f"{path}, {place}: {message}") from error

    @property
    def traces(self) -> list[str]:
        """The traces' names, one or several."""
        return [self.trace] if isinstance(self.trace, str) else self.trace

    @property
    def varied(self) -> list[str]:
        """Columns that tell cells apart, seeds last."""
        return ["trace", *self.vary, "rate_scale", "seed"]

    def cells(self) -> Iterator[tuple[dict[str, Any], Cell]]:
        """Every combination, and what tells it apart; seeds next to each other.

        Raises:
            ValueError: a value that no run takes, a trace that cannot be read.
        """
        for source in self.traces:
            read = {seed: self._read(source, seed) for seed in self.seeds}
            for *values, rate, seed in product(*self.vary.values(), self.rates, self.seeds):
                own = dict(zip(self.vary, values, strict=True))
                config = RunConfig.of(
                    **{**self.base, **own, "trace": source, "seed": seed, "rate_scale": rate}
                )
                told = {"trace": source, **own, "rate_scale": rate, "seed": seed}
                yield told, Cell.of(config, *read[seed])

    def _read(self, source: str, seed: int) -> tuple[Trace, str]:
        """The trace as drawn with a seed, at its own rate, and the hash of its content."""
        trace = read_trace(RunConfig.of(**{**self.base, "trace": source, "seed": seed}))
        return trace, hash_of(trace)
