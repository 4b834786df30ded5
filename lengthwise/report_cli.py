"""The commands `report` and `timeline`: finished runs as a web page, or as a trace to look into."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Force = Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")]


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Records, or folders of `compare`.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    force: Force = False,
) -> None:
    """Write one self-contained HTML page on one or several runs.

    For example: lengthwise report runs/demo --out demo.html
    """
    from lengthwise.report import load_runs
    from lengthwise.report import report as html
    from serving.folder import new_file

    with new_file(out, force) as temporary:
        temporary.write_text(html(load_runs(folders)), encoding="utf-8")
    typer.echo(f"report: {out}")


def timeline(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A record.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The trace to write.")] = Path(
        "timeline.json"
    ),
    begin: Annotated[
        float | None, typer.Option("--from", metavar="S", help="Begin here, seconds.")
    ] = None,
    end: Annotated[
        float | None, typer.Option("--to", metavar="S", help="End here, seconds.")
    ] = None,
    force: Force = False,
) -> None:
    """Write a run as a Chrome trace, to open in https://ui.perfetto.dev.

    For example: lengthwise timeline runs/demo/continuous --out trace.json --from 0 --to 60
    """
    from lengthwise.levels import span
    from lengthwise.timeline import write_timeline
    from serving.folder import new_file
    from serving.record import Record

    record = Record.load(folder)
    whole = span({"": record})
    window = None
    if begin is not None or end is not None:
        window = (whole[0] if begin is None else begin, whole[1] if end is None else end)
    with new_file(out, force) as temporary:
        low, high = write_timeline(record, temporary, window)
    typer.echo(f"timeline: {out} (open it in https://ui.perfetto.dev)")
    if window is None and high < whole[1]:
        typer.echo(
            f"note: only {low:g} s to {high:g} s of {whole[1]:g} s fit; "
            "choose with --from and --to",
            err=True,
        )
