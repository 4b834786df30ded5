"""The device: what it is called, what it holds, and events on it."""

from __future__ import annotations

from collections.abc import Callable

import torch


def event(timing: bool = False) -> torch.cuda.Event:
    """A CUDA event, with the time at which the GPU reaches it if asked for."""
    make: Callable[..., torch.cuda.Event] = torch.cuda.Event
    return make(enable_timing=timing)


def stream() -> torch.cuda.Stream:
    """A new CUDA stream."""
    make: Callable[..., torch.cuda.Stream] = torch.cuda.Stream
    return make()
