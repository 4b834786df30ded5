"""The command `conform`: is an engine's recorded schedule reproduced, decision for decision?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def conform(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Recordings of vLLM or SGLang, .json or .json.gz."),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """Replay recordings of an engine's own scheduler and name the first difference of each.

    One line a file: `same`, or the first step and field that differ, with both values. The exit
    code is 1 if anything differs and 2 if a file is not a recording.

    For example: lengthwise conform tests/recordings/vllm/*.json.gz
    """
    from policies.conform import RecordingError, compare, read

    results: dict[str, Any] = {}
    code = 0
    for path in files:
        try:
            difference = compare(read(path))
        except RecordingError as error:
            typer.echo(error, err=True)
            results[str(path)] = {"error": str(error)}
            code = 2
            continue
        if difference is not None:
            code = max(code, 1)
        results[str(path)] = None if difference is None else difference._asdict()
        if not as_json:
            typer.echo(f"{path}: {'same' if difference is None else difference}")
    if as_json:
        typer.echo(json.dumps({"files": results, "same": code == 0}))
    if code:
        raise typer.Exit(code)
