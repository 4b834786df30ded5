"""The settings that a plan chooses among, and what a GPU hour costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from lengthwise.config import SLO, TRACE, RunConfig, panel_of
from lengthwise.prepare import DEFAULT_HARDWARE
from policies.compose import PolicyChoiceError
from policies.names import nearest

GRID: dict[str, tuple[int, ...]] = {
    "max_num_batched_tokens": (512, 1024, 2048, 4096, 8192, 16384),
    "max_num_seqs": (32, 64, 128, 256, 512, 1024),
}
"""What is varied where nothing is said."""

MACHINE = ("model", "hardware", "tp", "dtype", "kv_dtype", "cost")
"""Fields that say what a replica runs on; the others say how."""

FIXED = {"replicas", "router", "groups", "jump", "seed", "record"}
"""Fields that a plan does not vary besides those of the trace and the SLO."""


@dataclass(frozen=True)
class Candidate:
    """One combination of settings, on one replica."""

    number: int
    setting: Mapping[str, Any]
    """What is varied, by name."""
    config: RunConfig

    @property
    def machine(self) -> tuple[Any, ...]:
        """What it runs on."""
        return tuple(getattr(self.config, name) for name in MACHINE)

    @property
    def hardware(self) -> str:
        """The GPU that it runs on."""
        return self.config.hardware or DEFAULT_HARDWARE

    @property
    def gpus(self) -> int:
        """Of one replica."""
        return self.config.tp or 1

    @property
    def label(self) -> str:
        """The settings in words."""
        return " ".join(f"{name}={value}" for name, value in self.setting.items()) or "as given"


def parse_vary(given: Sequence[str]) -> dict[str, list[Any]]:
    """`NAME=V1,V2,…` each, as values by field.

    Raises:
        PolicyChoiceError: not of this form, an unknown field with the nearest, a value twice.
    """
    import yaml

    known = [
        name
        for name, field in RunConfig.model_fields.items()
        if panel_of(field) not in ("", TRACE, SLO) and name not in FIXED
    ]
    vary: dict[str, list[Any]] = {}
    for text in given:
        name, sign, listed = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        values = [yaml.safe_load(part) for part in listed.split(",") if part.strip()]
        if not sign or not values:
            raise PolicyChoiceError(f"--vary {text}: write NAME=VALUE,VALUE,…")
        if name not in known:
            raise PolicyChoiceError(f"--vary {text}: {name}: {nearest(name, known)}")
        if name in vary:
            raise PolicyChoiceError(f"--vary {text}: {name} is given twice")
        vary[name] = list(dict.fromkeys(values))
    return vary


def candidates(base: RunConfig, vary: Mapping[str, Sequence[Any]] | None = None) -> list[Candidate]:
    """Every combination of what is varied, the rest as in `base`.

    Without `vary`, those of `GRID` that `base` does not say.

    Raises:
        PolicyChoiceError: a value that its field does not take, or what a plan finds out itself.
    """
    if base.replicas != 1 or base.groups is not None:
        raise PolicyChoiceError("--replicas: a plan finds out how many; leave it out")
    if not vary:
        vary = {name: values for name, values in GRID.items() if getattr(base, name) is None}
    asked = base.model_dump(exclude_unset=True) | {"router": None}
    made = []
    for number, values in enumerate(product(*vary.values())):
        setting = dict(zip(vary, values, strict=True))
        made.append(Candidate(number, setting, RunConfig.of(**{**asked, **setting})))
    return made


def neighbours(candidate: Candidate, others: Sequence[Candidate]) -> list[Candidate]:
    """Those that differ in one varied setting, by one step of its values."""
    order = {
        name: list(dict.fromkeys(other.setting[name] for other in others))
        for name in candidate.setting
    }

    def steps(other: Candidate) -> list[int]:
        return [
            abs(values.index(other.setting[name]) - values.index(candidate.setting[name]))
            for name, values in order.items()
        ]

    return [other for other in others if sum(steps(other)) == 1]


def parse_prices(text: str, hardware: Sequence[str]) -> dict[str, float]:
    """`2.5`, or `h100=2.5,l40s=0.9`: dollars for an hour of one GPU, by hardware.

    Raises:
        PolicyChoiceError: not a price above 0, or no price for some hardware.
    """
    prices: dict[str, float] = {}
    for part in text.split(","):
        name, sign, amount = part.rpartition("=")
        try:
            price = float(amount)
        except ValueError:
            price = float("nan")
        if not 0 < price < float("inf"):
            raise PolicyChoiceError(
                f"--gpu-hour-price {text}: give dollars above 0, as 2.5 or h100=2.5,l40s=0.9"
            )
        for one in [name.strip()] if sign else hardware:
            if one not in hardware:
                raise PolicyChoiceError(f"--gpu-hour-price {part}: {nearest(one, hardware)}")
            prices[one] = price
    for one in hardware:
        if one not in prices:
            raise PolicyChoiceError(f"--gpu-hour-price {text}: no price for {one}")
    return prices
