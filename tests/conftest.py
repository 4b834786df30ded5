"""What all tests share: how hypothesis searches, and that nothing is skipped in silence."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Plots are drawn without a display; one thread, so that figures of time mean something.
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("lengthwise", deadline=None, print_blob=True)
settings.load_profile("lengthwise")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not tested here, and why."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2]
        reasons[reason] = reasons.get(reason, 0) + 1
    if reasons:
        terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
        for reason, count in sorted(reasons.items()):
            terminalreporter.line(f"{count} × {reason}", red=True)
