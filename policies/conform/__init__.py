"""Replays recordings of an engine's own scheduler and names the first difference.

A recording says which requests arrived before which step and what the engine decided in each; its
format is described in docs/conform.md. Time plays no part: this is the third driver of the loop,
beside the simulated and the wall clock.
"""

from policies.conform.comparison import Difference, compare, replay
from policies.conform.recording import (
    Recording,
    RecordingError,
    SglangRecording,
    VllmRecording,
    parse,
    read,
)

__all__ = [
    "Difference",
    "Recording",
    "RecordingError",
    "SglangRecording",
    "VllmRecording",
    "compare",
    "parse",
    "read",
    "replay",
]
