"""One way in: a file of any known format, or a built-in workload, as a Trace."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from traces.errors import TraceError
from traces.layout import Options
from traces.source import Source
from traces.trace import Trace
from traces.trouble import OnBadRow, Trouble
from traces.workloads import DEFAULT_REQUESTS, WORKLOADS


def load(
    source: str | os.PathLike[str],
    *,
    format: str | None = None,
    limit: int | None = None,
    rate_scale: float = 1.0,
    seed: int = 0,
    on_bad_row: OnBadRow = "error",
    bad_rows: str | os.PathLike[str] | None = None,
    spread_ties: bool = False,
    tokenizer: str | os.PathLike[str] | None = None,
    output_tokens: int | None = None,
) -> Trace:
    """Read the trace at `source`, or draw the built-in workload of that name.

    An existing path wins over a workload's name. Arrivals are seconds from the first, sorted.

    Args:
        source: a path, or `chat`, `code`, `long-context`.
        format: a name in `traces.formats`; chosen by content where None.
        limit: the first so many requests by arrival; a workload draws so many (default 1,000).
        rate_scale: the factor on the arrival rate (2 halves all arrival times).
        seed: seeds a workload's draws and the spreading of ties.
        on_bad_row: `error` stops at the first bad row; `skip` leaves bad rows out, counts them in
            the notes and lists them in `bad_rows`.
        bad_rows: the side file of `skip`; `<file name>.bad-rows.csv` in the current folder
            where None.
        spread_ties: spread requests that share a timestamp within the clock's tick.
        tokenizer: a local tokenizer.json, for files that hold text (`vllm-custom`, `sharegpt`).
        output_tokens: the output length of prompts that come without one.

    Raises:
        TraceError: the file cannot be used; the message says where and what to do.
    """
    if limit is not None and limit < 1:
        raise TraceError(f"limit must be at least 1, not {limit}")
    path = Path(source)
    if path.exists():
        options = Options(seed, limit, None if tokenizer is None else str(tokenizer), output_tokens)
        side_file = Path(bad_rows) if bad_rows is not None else Path(f"{path.name}.bad-rows.csv")
        with Trouble(str(path), on_bad_row, side_file) as trouble:
            trace = read(path, format, trouble, options)
    elif str(source) in WORKLOADS and format is None:
        trace = WORKLOADS[str(source)].draw(limit or DEFAULT_REQUESTS, seed)
    else:
        raise TraceError(_unknown(str(source), format))
    if limit is not None:
        trace = trace.head(limit)
    if spread_ties:
        from traces.edit import spread

        trace = spread(trace, seed)
    return trace if rate_scale == 1 else trace.at_rate(rate_scale)


def read(path: Path, format: str | None, trouble: Trouble, options: Options) -> Trace:
    """Read the file at `path`: choose its format, gather its chunks, finish.

    Raises:
        TraceError: the file cannot be used.
    """
    from traces.formats import BY_NAME, choose
    from traces.rows import Rows

    source = Source.at(path)
    if format is None:
        chosen, reason = choose(source)
        note = f"read as {chosen.name}: {reason}"
    elif format in BY_NAME:
        chosen, note = BY_NAME[format], f"read as {format}: asked for"
    else:
        near = difflib.get_close_matches(format, BY_NAME, n=1)
        hint = f" The nearest is {near[0]}." if near else ""
        raise TraceError(f"no format named {format!r}.{hint} There are {', '.join(BY_NAME)}.")
    rows = Rows(chosen.layout, trouble)
    for chunk in chosen.read(source, chosen.layout, trouble, options):
        rows.add(chunk)
    return rows.finish(path.name, (note, chosen.said) if chosen.said else (note,))


def _unknown(source: str, format: str | None) -> str:
    """Why `source` is neither a file nor a workload."""
    if format is not None and source in WORKLOADS:
        return f"{source}: a built-in workload has no --format. Leave it out, or give a file."
    near = difflib.get_close_matches(source, WORKLOADS, n=1)
    folder = Path(source).parent
    files = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    near += difflib.get_close_matches(Path(source).name, files, n=2)
    hint = f" Nearest: {', '.join(near)}." if near else ""
    return f"{source}: no such file or built-in workload ({', '.join(WORKLOADS)}).{hint}"
