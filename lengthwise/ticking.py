"""Something done now and then while something else goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ticking(tick: Callable[[], None], period: float) -> Iterator[None]:
    """Call `tick` every `period` s from a thread of its own, and once more at the end.

    What it raises ends the ticking, and is raised at the end.
    """
    over = threading.Event()
    raised: list[BaseException] = []

    def watch() -> None:
        try:
            while not over.wait(period):
                tick()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if raised:
        raise raised[0]
    tick()
