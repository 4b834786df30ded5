"""What to generate: tenants with arrivals and lengths, in YAML or in short forms, checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from traces.errors import TraceError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=1, le=10**9)]
Cv = Annotated[float, Field(ge=0.05, le=20)]
"""Beyond these a process is constant, or one burst."""
M = TypeVar("M", bound=BaseModel)


class _Strict(BaseModel):
    """Names that are not known are errors, not noise."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Constant(_Strict):
    """Equal gaps."""

    kind: Literal["constant"] = "constant"


class Poisson(_Strict):
    """Exponential gaps."""

    kind: Literal["poisson"] = "poisson"


class Gamma(_Strict):
    """Gamma gaps of this coefficient of variation."""

    kind: Literal["gamma"] = "gamma"
    cv: Cv


class Weibull(_Strict):
    """Weibull gaps of this coefficient of variation."""

    kind: Literal["weibull"] = "weibull"
    cv: Cv


class OnOff(_Strict):
    """Poisson in on-periods, nothing in off-periods; both exponentially long."""

    kind: Literal["on-off"] = "on-off"
    on_s: Positive
    off_s: Positive


class Diurnal(_Strict):
    """Poisson at a rate that follows a sine; `peak` is its largest over its mean."""

    kind: Literal["diurnal"] = "diurnal"
    peak: Annotated[float, Field(ge=1, le=2)]
    period_s: Positive = 86400.0


class Curve(_Strict):
    """Arrivals counted in windows, as `fit` takes them from a trace; gaps of `cv` within one."""

    kind: Literal["curve"] = "curve"
    window_s: Positive
    counts: Annotated[list[Annotated[int, Field(ge=0, le=10**9)]], Field(min_length=1)]
    span_s: Positive
    """Length of all windows; the last one may be shorter."""
    cv: Cv = 1.0
    tick_s: Positive | None = None
    """Times are multiples of this, as those of a coarse clock."""

    @model_validator(mode="after")
    def _whole(self) -> Curve:
        if not sum(self.counts):
            raise ValueError("counts: at least one must be above 0")
        if not len(self.counts) - 1 < self.span_s / self.window_s <= len(self.counts):
            raise ValueError(
                f"span_s: {self.span_s:g} s are not {len(self.counts)} windows of "
                f"{self.window_s:g} s"
            )
        return self


class FileArrivals(_Strict):
    """The arrival times of a trace file, repeated if more are wanted."""

    kind: Literal["file"] = "file"
    path: str


class Fixed(_Strict):
    """Always the same length."""

    kind: Literal["fixed"] = "fixed"
    tokens: Tokens


class Uniform(_Strict):
    """Whole numbers from `low` to `high`."""

    kind: Literal["uniform"] = "uniform"
    low: Tokens
    high: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


class Lognormal(_Strict):
    """Lognormal by its mean and its logarithm's standard deviation."""

    kind: Literal["lognormal"] = "lognormal"
    mean: Annotated[float, Field(ge=1, le=10**9)]
    sigma: Annotated[float, Field(ge=0, le=5)]
    most: Tokens | None = None


class Zipf(_Strict):
    """P(k) proportional to k^−exponent, k from 1 to `most`."""

    kind: Literal["zipf"] = "zipf"
    exponent: Annotated[float, Field(ge=0, le=20)]
    most: Annotated[int, Field(ge=1, le=10**7)]


class Pareto(_Strict):
    """P(X > x) = (least / x)^alpha."""

    kind: Literal["pareto"] = "pareto"
    alpha: Annotated[float, Field(ge=0.05, le=100)]
    least: Tokens
    most: Tokens | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Pareto:
        if self.most is not None and self.least > self.most:
            raise ValueError(f"least {self.least} is above most {self.most}")
        return self


class Quantiles(_Strict):
    """Token counts at rising levels from 0 to 1, straight lines between."""

    kind: Literal["quantiles"] = "quantiles"
    levels: Annotated[list[float], Field(min_length=2)]
    tokens: list[Annotated[float, Field(ge=0, le=10**9)]]

    @model_validator(mode="after")
    def _rising(self) -> Quantiles:
        if len(self.levels) != len(self.tokens):
            raise ValueError(f"{len(self.levels)} levels and {len(self.tokens)} tokens")
        if self.levels[0] != 0 or self.levels[-1] != 1 or np.any(np.diff(self.levels) <= 0):
            raise ValueError("levels must rise from 0 to 1")
        if np.any(np.diff(self.tokens) < 0):
            raise ValueError("tokens must not fall")
        return self


class FileLengths(_Strict):
    """The prompts, or the outputs, of a trace file, each equally often."""

    kind: Literal["file"] = "file"
    path: str


Arrivals = Annotated[
    Constant | Poisson | Gamma | Weibull | OnOff | Diurnal | Curve | FileArrivals,
    Field(discriminator="kind"),
]
Lengths = Annotated[
    Fixed | Uniform | Lognormal | Zipf | Pareto | Quantiles | FileLengths,
    Field(discriminator="kind"),
]


class Tenant(_Strict):
    """One kind of traffic. Lengths are `prompt` and `output`, or drawn in pairs from `joint`."""

    name: str = "default"
    rate: Positive | None = None
    """Requests a second; the file's own where arrivals come from a file or a curve."""
    arrivals: Arrivals = Poisson()
    prompt: Lengths | None = None
    output: Lengths | None = None
    joint: str | None = None
    """Path of a trace whose (prompt, output) pairs are drawn, each equally often."""
    rank_correlation: Annotated[float, Field(gt=-1, lt=1)] | None = None
    """Spearman's, of prompt and output."""
    priority: int | None = None

    @model_validator(mode="after")
    def _complete(self) -> Tenant:
        own = isinstance(self.arrivals, Curve | FileArrivals)
        if self.rate is None and not own:
            raise ValueError(f"rate: missing; {self.arrivals.kind} arrivals need one")
        if (self.joint is None) != (self.prompt is not None and self.output is not None):
            raise ValueError("give prompt and output, or joint alone")
        if self.joint is not None and (self.prompt or self.output or self.rank_correlation):
            raise ValueError("joint already says prompt, output and their correlation")
        if isinstance(self.prompt, Quantiles) and self.prompt.tokens[0] < 1:
            raise ValueError("prompt: tokens must be at least 1")
        return self


class Spec(_Strict):
    """A whole workload: so many requests, or so many seconds, of one or more tenants."""

    requests: Annotated[int, Field(ge=1, le=10**9)] | None = None
    duration_s: Positive | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    tenants: Annotated[list[Tenant], Field(min_length=1)]

    @model_validator(mode="after")
    def _names(self) -> Spec:
        names = [tenant.name for tenant in self.tenants]
        if len(set(names)) < len(names):
            raise ValueError("tenants: two have the same name")
        return self


def load_spec(path: str | os.PathLike[str]) -> Spec:
    """Read a YAML spec.

    Raises:
        TraceError: not YAML, or not a spec; the message names the field.
    """
    import yaml

    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        document = yaml.safe_load(text)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be read ({error}).") from error
    except yaml.YAMLError as error:
        raise TraceError(f"{path}: not YAML ({error}).") from error
    return checked(Spec, document, str(path))


def save_spec(spec: Spec, path: str | os.PathLike[str], about: str = "") -> None:
    """Write a spec as YAML that `load_spec` reads; `about` becomes its first comment.

    Raises:
        TraceError: the file cannot be written.
    """
    import yaml

    document = spec.model_dump(exclude_none=True)
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=100)
    try:
        Path(path).write_text((f"# {about}\n" if about else "") + text, encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{os.fspath(path)}: cannot be written ({error}).") from error


def checked(model: type[M], document: Any, where: str) -> M:
    """`document` as `model`.

    Raises:
        TraceError: what is wrong, and in which field.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "document"
        message = first["msg"].removeprefix("Value error, ")
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise TraceError(f"{where}, field {field}: {message}{more}.", column=field) from error
