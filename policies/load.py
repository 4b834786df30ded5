"""Finds a user's own policy: a class in a file, in a module, or under an entry point."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from policies.compose import KNOWN, PolicyChoiceError

GROUP = "lengthwise.policies"
"""Group of entry points in which an installed package offers policies."""


def load_policy(name: str) -> str | type:
    """A named policy as its name, a user's own as its class.

    Args:
        name: a built-in one, `path/to/file.py:MyPolicy`, `package.module:MyPolicy`, or the name
            of an entry point in the group `lengthwise.policies`.

    Raises:
        PolicyChoiceError: no such file, module or class, or a class that is no policy.
    """
    if name in KNOWN:
        return name
    if ":" in name:
        where, _, attribute = name.rpartition(":")
        module = _from_file(where) if where.endswith(".py") else _from_module(where)
        found = getattr(module, attribute, None)
        if found is None:
            raise PolicyChoiceError(f"--policy {name}: {where} has no class {attribute}")
        return _checked(found, name)
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            return _checked(entry.load(), name)
    return name  # unknown: whoever builds it says so, with the names there are


def _from_file(where: str) -> ModuleType:
    path = Path(where)
    if not path.is_file():
        raise PolicyChoiceError(f"--policy {where}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise PolicyChoiceError(f"--policy {where}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError) as error:
        raise PolicyChoiceError(f"--policy {where}: {error}") from error
    return module


def _from_module(where: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last: it never comes before our own packages
    try:
        return importlib.import_module(where)
    except (ImportError, SyntaxError) as error:
        raise PolicyChoiceError(f"--policy {where}: {error}") from error


def _checked(found: object, name: str) -> type:
    if isinstance(found, type) and (hasattr(found, "form") or hasattr(found, "plan")):
        return found
    raise PolicyChoiceError(
        f"--policy {name}: a policy is a class with `form` (a grouping) or `plan` (a planner)"
    )
