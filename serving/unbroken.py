"""Ctrl-C in the middle of something that must not be left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def unbroken() -> Iterator[None]:
    """Let an interrupt wait until the block has ended.

    Outside the main thread, which alone is interrupted, nothing changes.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    asked: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: asked.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        before(*asked[0])
