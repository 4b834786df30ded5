"""Replicas behind a router: how many, which differ, and who chooses among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from lengthwise.config import RECORD, SLO, TRACE, RunConfig, panel_of
from lengthwise.prepare import Prepared, prepare
from policies.compose import PolicyChoiceError
from policies.names import nearest
from sim.engine import Router, first_replica
from sim.routers import ROUTERS
from traces import Trace

DEFAULT_ROUTER = "round-robin"


def prepare_run(config: RunConfig, trace: Trace) -> Prepared:
    """Work out everything that the flags leave open, of each replica.

    Raises:
        ValueError: the user's mistake, with the flag, what was found and what to do.
    """
    if config.groups is None:
        ready = prepare(config, trace)
        return _cluster(ready, [ready] * config.replicas)
    if not config.groups:
        raise PolicyChoiceError("groups: give at least one group of replicas")
    if config.replicas != 1:
        raise PolicyChoiceError(
            f"--replicas {config.replicas}: the groups say how many replicas there are"
        )
    members: list[Prepared] = []
    for number, group in enumerate(config.groups, 1):
        one = _group(config, group, f"group {number}")
        members += [prepare(one, trace)] * one.replicas
    return _cluster(replace(members[0], config=config), members)


def _group(config: RunConfig, group: dict[str, Any], place: str) -> RunConfig:
    """The configuration of one group: what it says itself, and the rest as for all."""
    fields = {str(name).replace("-", "_"): value for name, value in group.items()}
    shared = {"router", "jump", "seed"} | {
        name
        for name, field in RunConfig.model_fields.items()
        if panel_of(field) in ("", TRACE, SLO, RECORD) and name != "replicas"
    }
    own = [name for name in RunConfig.model_fields if name not in shared]
    for name in fields:
        if name not in own:
            raise PolicyChoiceError(f"groups, {place}, {name}: {nearest(name, own)}")
    base = config.model_dump(exclude_unset=True) | {"groups": None}
    return RunConfig.of(**{**base, **fields})


def _cluster(ready: Prepared, members: Sequence[Prepared]) -> Prepared:
    """A run of several replicas: figures that they share, and what they are."""
    config = ready.config
    if len(members) == 1:
        if config.router is not None:
            raise PolicyChoiceError(f"--router {config.router}: one replica needs none")
        return ready
    router = config.router or DEFAULT_ROUTER
    if router not in ROUTERS:
        raise PolicyChoiceError(f"--router {router}: {nearest(router, ROUTERS)}")
    caching = [m.facts["enable_prefix_caching"] for m in members]
    sizes = {m.settings.block_size for m in members}
    if router == "prefix-affinity" and not all(caching):
        raise PolicyChoiceError(
            "--router prefix-affinity: it has use only where prefixes are cached; add "
            "--enable-prefix-caching, and give a trace with block hashes"
        )
    if any(caching) and len(sizes) > 1:
        raise PolicyChoiceError("groups: with prefix caching all have the same block_size")
    if any(caching) and len({m.point.lifecycle == "sglang" for m in members}) > 1:
        raise PolicyChoiceError(
            "groups: sglang's radix cache matches tokens and the others match blocks; leave prefix "
            "caching out, or take groups of one kind"
        )
    facts = {name: _shared(m.facts.get(name) for m in members) for name in ready.facts}
    facts |= {
        "replicas": len(members),
        "router": router,
        "gpus": sum(m.config.tp or 1 for m in members),
    }
    if config.groups is not None:
        facts["policy"] = facts["policy"] or "several policies"
        facts["members"] = [m.facts for m in members]
    notes = tuple(dict.fromkeys(note for m in members for note in m.notes))
    return replace(ready, name=facts["policy"], facts=facts, notes=notes, members=tuple(members))


def _shared(values: Iterable[Any]) -> Any:
    """What all replicas have alike, or None."""
    first, *others = values
    return first if all(value == first for value in others) else None


def make_router(ready: Prepared) -> Router:
    """The router of a prepared run, new."""
    if len(ready.members) < 2:
        return first_replica
    capacity = [m.settings.usable_blocks for m in ready.members]
    known = [m.settings.usable_blocks or 1 << 20 for m in ready.members]
    per_hash = ready.members[0].settings.blocks_per_hash
    return ROUTERS[ready.facts["router"]](
        seed=ready.config.seed, capacity=capacity, hashes=sum(known) // per_hash
    )
