"""A trace's figures as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def show(figures: dict[str, Any]) -> None:
    """Print what `traces.describe.describe` returns."""
    from rich.console import Console
    from rich.table import Table

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    for label, text in _facts(figures):
        facts.add_row(label, text)
    lengths = Table(box=None, padding=(0, 2, 0, 0))
    names = list(figures["prompt_tokens"])
    for heading in ("tokens", *names):
        lengths.add_column(heading, justify="left" if heading == "tokens" else "right")
    for label in ("prompt", "output"):
        values = figures[f"{label}_tokens"]
        lengths.add_row(label, *(f"{values[name]:,.0f}" for name in names))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    console.print(facts, "", lengths, "")
    for note in figures["notes"]:
        console.print(f"Note: {note}", markup=False)


def _facts(figures: dict[str, Any]) -> Sequence[tuple[str, str]]:
    """The figures that are not lengths, as label and text; absent ones left out."""

    def shown(key: str, form: str) -> str | None:
        return None if figures[key] is None else form.format(figures[key])

    rows = [
        ("trace", figures["name"]),
        ("requests", shown("requests", "{:,}")),
        ("prompt tokens", shown("total_prompt_tokens", "{:,}")),
        ("output tokens", shown("total_output_tokens", "{:,}")),
        ("longest request", shown("longest_total_tokens", "{:,} tokens (prompt + output)")),
        ("span", shown("span_s", "{:,.6g} s")),
        ("mean rate", shown("mean_rate", "{:.4g} requests/s")),
        ("rate over time", _bars(figures["rate_over_time"])),
        ("peak rate in 1 s", shown("peak_rate_1s", "{:.4g} requests/s")),
        ("peak rate in 60 s", shown("peak_rate_60s", "{:.4g} requests/s")),
        ("CV of gaps", shown("gap_cv", "{:.3g} (Poisson: 1)")),
        ("dispersion in 1 s", shown("dispersion_1s", "{:.3g} (variance / mean; Poisson: 1)")),
        ("dispersion in 60 s", shown("dispersion_60s", "{:.3g}")),
        ("rank correlation", shown("prompt_output_spearman", "{:.3f} (prompt and output)")),
        ("shared prefixes", shown("shared_prefix_share", "{:.1%} of prompt tokens")),
    ]
    for key in ("tenants", "priorities"):
        if figures[key] is not None:
            parts = [f"{name} {count:,}" for name, count in list(figures[key].items())[:8]]
            rows.append((key, ", ".join(parts) + (" …" if len(figures[key]) > 8 else "")))
    return [(label, text) for label, text in rows if text is not None]


def _bars(rates: dict[str, Any] | None) -> str | None:
    """Rates over time as a row of bars from 0 to the highest."""
    if rates is None or not rates["requests_per_s"]:
        return None
    highest = max(rates["requests_per_s"])
    bars = "".join(" ▁▂▃▄▅▆▇█"[round(8 * rate / highest)] for rate in rates["requests_per_s"])
    return f"{bars}| (windows of {rates['window_s']:g} s, highest {highest:.4g}/s)"
