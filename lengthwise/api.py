"""The Python API: load a trace, replay it under a policy, compare policies."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lengthwise.cluster import make_router, prepare_run
from lengthwise.config import RunConfig
from lengthwise.glimpse import Progress, looked_at
from lengthwise.prepare import Prepared, requests_of
from lengthwise.recording import Recording
from lengthwise.unused import compared
from policies.compose import NAMED, PolicyChoiceError, compose
from serving.core import Core
from serving.record import Record
from serving.recorder import Recorder
from sim.engine import Options, simulate
from traces import Trace, load

READING = ("format", "limit", "rate_scale", "seed", "on_bad_row", "spread_ties", "tokenizer")
"""Options that say how a file is read."""


def load_trace(source: str | Path, **options: Any) -> Trace:
    """Read a trace file, or draw a built-in workload (`chat`, `code`, `long-context`).

    Options and errors are those of `traces.load`.
    """
    return load(source, **options)


def replay(
    trace: Trace | str | Path,
    policy: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Record:
    """Replay a trace under a policy against the simulated clock.

    Args:
        trace: a trace, a file, or the name of a built-in workload.
        policy: by name, or a user's own (`file.py:MyPolicy`); `chunked-prefill` if not given, or
            what is the engine's own with `like`.
        progress: told a few times a second how the run stands, from another thread.
        options: the flags of `lengthwise replay`, with underscores.

    Returns:
        The record: `.summary`, `.requests`, and with `record="full"` `.steps` and `.events`.

    Raises:
        ValueError: the user's mistake, with the flag, what was found and what to do.
    """
    config = RunConfig.of(**({} if policy is None else {"policy": policy}), **options)
    requests, config = given_trace(trace, config)
    return run(prepare_run(config, requests), requests, progress)


def compare(
    trace: Trace | str | Path,
    policies: Sequence[str] = tuple(NAMED),
    progress: Callable[[str], Progress | None] | None = None,
    **options: Any,
) -> dict[str, Record]:
    """Replay one trace under several policies.

    Options that only some of the policies know go to those (a token budget, bucket bounds). With
    `like="own"` each policy has the defaults of the engine whose scheduler it is.

    Returns:
        A record for each policy, in the order given.

    Raises:
        KeyboardInterrupt: one was interrupted.
    """
    requests, config = given_trace(trace, RunConfig.of(**options))
    options = options if config.trace is None else {**options, "trace": config.trace}
    prepared = {p: prepare_run(own, requests) for p, own in compared(policies, options).items()}
    return {
        policy: whole(run(ready, requests, None if progress is None else progress(policy)))
        for policy, ready in prepared.items()
    }


def given_trace(trace: Trace | str | Path, config: RunConfig) -> tuple[Trace, RunConfig]:
    """The requests, and the configuration that names where they are from.

    Raises:
        PolicyChoiceError: options of reading a file beside a trace that is read already.
    """
    if not isinstance(trace, Trace):
        config = config.model_copy(update={"trace": str(trace)})
        return read_trace(config), config
    for name in READING:
        if getattr(config, name) != RunConfig.model_fields[name].default:
            raise PolicyChoiceError(
                f"{name}={getattr(config, name)}: this trace is read already; give the option to "
                "load_trace, or take trace.head() and trace.at_rate()"
            )
    return trace, config


def read_trace(config: RunConfig) -> Trace:
    """The trace that a configuration names."""
    return load(str(config.trace), **{name: getattr(config, name) for name in READING})


def run(
    ready: Prepared, trace: Trace, progress: Progress | None = None, folder: Path | None = None
) -> Record:
    """Simulate a prepared run.

    Args:
        ready: the run.
        trace: its requests.
        progress: told a few times a second how it stands, from another thread.
        folder: one that exists, for the steps and events as they come: the record's own `write`
            completes it. In memory if not given.

    Returns:
        The record; of an interrupted run, of what had run until then.
    """
    members = ready.members or (ready,)
    recording = Recording(ready, trace, folder)
    recorders = recording.recorders
    engines = [make_engine(*pair) for pair in zip(members, recorders, strict=True)]
    hashed = any(member.settings.enable_prefix_caching for member in members)
    radix = ready.point.lifecycle == "sglang"
    requests = requests_of(trace, ready.settings.block_size, hashed, radix)
    costs, ways = [member.cost for member in members], [_driven(member) for member in members]
    config = describe(ready)
    with looked_at(recorders, len(trace), progress):
        try:
            simulate(requests, engines, costs, ways, make_router(ready))
        except KeyboardInterrupt:
            config["interrupted"] = True
    made = recording.finish()
    notes = (*ready.notes, *recording.notes())
    return Record(config, made.requests, made.steps, made.events, notes, made.folded)


def whole(record: Record) -> Record:
    """A record that may be held against others, since it ran to its end.

    Raises:
        KeyboardInterrupt: it did not.
    """
    if record.config.get("interrupted"):
        raise KeyboardInterrupt
    return record


def make_engine(ready: Prepared, recorder: Recorder) -> tuple[Core, Recorder]:
    """A prepared replica that has not run: its core, and the recorder of what it does."""
    planner = compose(ready.point, ready.settings, recorder)
    return Core(planner, recorder, ready.settings.max_model_len), recorder


def _driven(ready: Prepared) -> Options:
    return Options(
        depth=2 if ready.settings.async_scheduling else 1,
        jump=ready.config.jump,
        cuda_graphs=ready.config.cuda_graphs,
    )


def describe(ready: Prepared) -> dict[str, Any]:
    """A record's config.json: the flags as asked for, what followed from them, and versions."""
    return {
        "run": ready.config.model_dump(mode="json", exclude_none=True),
        **ready.facts,
        "slo": ready.config.slo,
        "goodput": ready.config.goodput,
        "backend": "simulated",
        "versions": versions("lengthwise", "numpy", "simpy"),
    }


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of the packages that a run depends on."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
