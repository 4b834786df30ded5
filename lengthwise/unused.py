"""Which flags a policy has no use for: one that is given all the same is refused, not ignored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from lengthwise.config import RunConfig
from lengthwise.sglang_flags import OWN, SPELLINGS
from policies.compose import KNOWN, Point, PolicyChoiceError

SGLANG = frozenset((*OWN, *SPELLINGS))


def unused(point: Point) -> frozenset[str]:
    """Fields of a run's configuration that a policy does not look at."""
    user = not isinstance(point.grouping, str)
    fields: set[str] = set()
    if not (point.grouping == "bucketing" or user):
        fields.add("max_wait_ms")
        if point.layout != "bucket":
            fields.add("bucket_bounds")
    if point.lifecycle not in ("continuous", "chunked-prefill"):
        fields |= {"long_prefill_token_threshold", "watermark"}
    if point.lifecycle != "sglang":
        fields |= SGLANG
    return frozenset(fields)


def unfit(point: Point) -> frozenset[str]:
    """The same and those that the policy refuses with a reason of its own."""
    fields = set(unused(point))
    if point.lifecycle == "drain":
        fields.add("enable_prefix_caching")
        if point.grouping in ("fcfs", "bucketing"):
            fields.add("max_num_batched_tokens")
    if point.lifecycle == "sglang":
        fields.add("async_scheduling")
    return frozenset(fields)


def refuse_unused(config: RunConfig, point: Point) -> None:
    """Refuse what was asked for and would not be looked at.

    Raises:
        PolicyChoiceError: names the flag, the policy, and what to do.
    """
    for name in RunConfig.model_fields:  # in their order
        value = getattr(config, name)
        if name in unused(point) and _asks(name, value):
            lifecycle = f" ({point.lifecycle})" if point.lifecycle != config.policy else ""
            hint = f"; it is --policy sglang's{_ours(name)}" if name in SGLANG else ""
            raise PolicyChoiceError(
                f"{flag(name, value)}: {config.policy}{lifecycle} does not use it{hint}"
            )
    _refuse_untimed(config)


def _refuse_untimed(config: RunConfig) -> None:
    fixed = config.cost == "fixed"
    if config.step_ms and not fixed:
        raise PolicyChoiceError(f"{flag('step_ms', config.step_ms)}: only --cost fixed uses it")
    if config.overhead_us_per_layer and fixed:
        given = flag("overhead_us_per_layer", config.overhead_us_per_layer)
        raise PolicyChoiceError(f"{given}: --cost fixed does not use it")
    if (config.tp or 1) == 1 or fixed:
        for name in ("allreduce_gbps", "allreduce_us"):
            if value := getattr(config, name):
                raise PolicyChoiceError(f"{flag(name, value)}: only --tp over 1 has an all-reduce")


def _asks(name: str, value: Any) -> bool:
    """Whether a flag asks for anything: what is off or 0 does not, but for SGLang's opposites."""
    return value is not None if name in SPELLINGS else bool(value)


def _ours(name: str) -> str:
    return f" --{SPELLINGS[name].replace('_', '-')}" if name in SPELLINGS else ""


def flag(name: str, value: Any) -> str:
    """A flag as it was given."""
    dashed = name.replace("_", "-")
    return f"--{dashed}" if value is True else f"--{dashed} {value}"


def own_options(policy: str, options: Mapping[str, Any]) -> RunConfig:
    """The options of a comparison that this policy knows.

    A token budget below the model's limit is not for `continuous`, whose prompts stay whole.
    """
    return RunConfig.of(**{k: v for k, v in options.items() if _takes(policy, k)}, policy=policy)


def _takes(policy: str, option: str) -> bool:
    if policy not in KNOWN:
        return option not in SGLANG
    if policy == "continuous" and option == "max_num_batched_tokens":
        return False
    return option not in unfit(KNOWN[policy])


def compared(policies: Iterable[str], options: Mapping[str, Any]) -> dict[str, RunConfig]:
    """The configuration of each policy of a comparison: an option goes to those that know it.

    Raises:
        PolicyChoiceError: an option that none of them knows, or a policy given twice.
    """
    names = list(policies)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise PolicyChoiceError(f"{twice[0]} is given twice; a comparison needs it once")
    for option, value in options.items():
        if _asks(option, value) and not any(_takes(name, option) for name in names):
            raise PolicyChoiceError(
                f"{flag(option, value)}: none of {', '.join(names)} has a use for it"
            )
    return {name: own_options(name, options) for name in names}
