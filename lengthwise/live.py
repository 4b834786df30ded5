"""What is seen on a terminal while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.live import Live
from rich.text import Text

from lengthwise.console import make_console, number, percent
from lengthwise.glimpse import Glimpse, Progress

_BAR_WIDTH = 32


class View:
    """The bars and figures of a run that goes on."""

    def __init__(self, label: str, total: int, seats: int, kv_blocks: int | None = None) -> None:
        """Begin with nothing done.

        Args:
            label: what is going on.
            total: how many requests there are.
            seats: of which running requests are a share.
            kv_blocks: usable ones; None: without limit, or not known.
        """
        self._label, self._seats, self._kv_blocks = label, seats, kv_blocks
        self._longest = self._most_blocks = 0  # so far
        self._began = time.monotonic()
        self._now = Glimpse(total)

    def show(self, now: Glimpse) -> None:
        """Take in how the run stands."""
        self._now = now
        self._longest = max(self._longest, now.waiting)
        self._most_blocks = max(self._most_blocks, now.kv_blocks)

    def __rich__(self) -> Text:
        """The view as it is printed: short lines, since it is drawn beside the run's own work."""
        now, kv = self._now, self._kv_blocks
        seconds = time.monotonic() - self._began
        if now.done:
            left = f"{_clock(seconds * (now.total - now.done) / now.done)} left"
        else:
            left = "none done yet" if now.steps else "starting"
        blocks = f"{percent(now.kv_blocks / kv)} of {kv:,}" if kv else f"{now.kv_blocks:,}"
        lines = (
            ("requests", now.done, now.total, f"{now.done:,} of {now.total:,}"),
            ("waiting", now.waiting, self._longest, f"{now.waiting:,}, {self._longest:,} at most"),
            ("running", now.running, self._seats, f"{now.running:,} of {self._seats:,} seats"),
            ("KV", now.kv_blocks, kv or self._most_blocks, f"{blocks} blocks"),
        )
        text = Text(f"{self._label}: {_clock(seconds)} so far, {left}\n", no_wrap=True)
        for name, part, whole, said in lines:
            full = round(_BAR_WIDTH * min(part / whole, 1)) if whole else 0
            text.append(f"  {name:8} ").append("█" * full, "cyan")
            text.append("░" * (_BAR_WIDTH - full), "dim").append(f" {said}\n")
        tokens = f"{number(now.tokens)} tokens a step"
        return text.append(f"  clock    {now.seconds:,.1f} s, {now.steps:,} steps, {tokens}")


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


@contextmanager
def live(
    label: str, total: int, seats: int, kv_blocks: int | None = None, quiet: bool = False
) -> Iterator[Progress | None]:
    """A view of a run on the terminal's error stream; none when piped.

    Args:
        label, total, seats, kv_blocks: as `View` takes them.
        quiet: show nothing.

    Yields:
        What to tell how the run stands, or None where nobody looks.
    """
    console = make_console(stderr=True)
    if quiet or not console.is_terminal or console.is_dumb_terminal:
        yield None
        return
    view = View(label, total, seats, kv_blocks)
    with Live(view, console=console, auto_refresh=False, transient=True) as screen:

        def show(now: Glimpse) -> None:
            view.show(now)
            screen.refresh()

        yield show
