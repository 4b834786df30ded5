"""Where the tests find real traces, recordings and measurements that are not in the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("LENGTHWISE_SHARED", ROOT.parent / "shared"))


def shared(*parts: str) -> Path:
    """The path of a shared file or folder; skips the test, loudly, where it is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is absent: set LENGTHWISE_SHARED to the folder that holds {parts[0]}")
    return path
