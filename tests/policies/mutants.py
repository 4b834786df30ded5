"""Rules broken one at a time: a method is compiled anew with one piece of its text changed."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Mutant(NamedTuple):
    """A rule, the function that holds it, and how to break it there."""

    rule: str
    owner: Any
    """The class or module whose function it is."""
    name: str
    old: str
    """Occurs exactly once in the function."""
    new: str


def install(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the broken function in the place of the whole one until the test ends."""
    whole = inspect.getattr_static(mutant.owner, mutant.name)
    function: Callable[..., Any] = whole.fget if isinstance(whole, property) else whole
    source = textwrap.dedent(inspect.getsource(function))
    count = source.count(mutant.old)
    assert count == 1, (
        f"{mutant.rule}: {mutant.name} has {mutant.old!r} {count} times; "
        "say anew how this rule is broken"
    )
    code = compile(
        source.replace(mutant.old, mutant.new),
        f"<{mutant.rule}>",
        "exec",
        flags=__future__.annotations.compiler_flag,
    )
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    monkeypatch.setattr(mutant.owner, mutant.name, made[function.__name__])
