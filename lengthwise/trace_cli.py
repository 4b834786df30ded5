"""`lengthwise trace …`: read, check, describe, convert, change and make traces."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from traces import TraceError, load

if TYPE_CHECKING:
    from traces import Trace
    from traces.spec import Spec


class _Group(TyperGroup):
    """A trace that cannot be used is one message and exit code 2, whatever the command."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TraceError as error:
            typer.echo(f"lengthwise: {error}", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(cls=_Group, no_args_is_help=True, help="Read, check, change and make traces.")

Source = Annotated[
    str, typer.Argument(metavar="TRACE", help="File, or built-in workload (chat, code, …).")
]
Format = Annotated[str | None, typer.Option(help="Format, if its content does not show it.")]
OnBadRow = Annotated[Literal["error", "skip"], typer.Option(help="Stop at a bad row, or skip it.")]
BadRows = Annotated[Path | None, typer.Option(help="Where skipped rows are listed.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many requests.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")]
SpreadTies = Annotated[
    bool, typer.Option("--spread-ties", help="Spread equal timestamps within the clock's tick.")
]
Tokenizer = Annotated[
    Path | None, typer.Option(help="Local tokenizer.json, for files that hold text.")
]
OutputTokens = Annotated[
    int | None, typer.Option(min=1, help="Output length of prompts that come without one.")
]
To = Annotated[str | None, typer.Option("--to", help="Format to write; else by extension.")]
Out = Annotated[Path, typer.Option(help="File to write.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, nothing else.")]


@app.command()
def describe(
    trace: Source,
    format: Format = None,
    on_bad_row: OnBadRow = "error",
    bad_rows: BadRows = None,
    limit: Limit = None,
    seed: Seed = 0,
    spread_ties: SpreadTies = False,
    tokenizer: Tokenizer = None,
    output_tokens: OutputTokens = None,
    plot: Annotated[
        Path | None, typer.Option(help="Save the four plots here; NAME-describe.png if not given.")
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Save no plots.")] = False,
    as_json: AsJson = False,
) -> None:
    """Counts, rate, burstiness, lengths and shared prefixes of a trace, and a page of plots.

    For example: lengthwise trace describe requests.csv
    """
    from traces.describe import describe as figures_of

    read = load(
        trace,
        format=format,
        limit=limit,
        seed=seed,
        on_bad_row=on_bad_row,
        bad_rows=bad_rows,
        spread_ties=spread_ties,
        tokenizer=tokenizer,
        output_tokens=output_tokens,
    )
    figures = figures_of(read)
    if plot is None and not as_json and not no_plot:
        plot = Path(f"{re.split(r'[.]', read.name.lstrip('.'))[0]}-describe.png")
    if plot is not None:
        from traces.plots import plot as save

        save(read, plot)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
        return
    from traces.table import show

    show(figures)
    if plot is not None:
        typer.echo(f"Plots: {plot}")


@app.command()
def check(
    trace: Annotated[Path, typer.Argument(metavar="FILE", help="Trace file.")],
    format: Format = None,
    tokenizer: Tokenizer = None,
    output_tokens: OutputTokens = None,
    as_json: AsJson = False,
) -> None:
    """Find every bad row. Exit code: 0 none, 1 some, 2 the file cannot be read.

    For example: lengthwise trace check requests.csv
    """
    from traces.check import check as check_file

    found = check_file(
        trace,
        format=format,
        tokenizer=None if tokenizer is None else str(tokenizer),
        output_tokens=output_tokens,
    )
    if as_json:
        document = {
            "ok": not found.bad_rows,
            "requests": len(found.trace),
            "bad_rows": found.bad_rows,
            "examples": list(found.examples),
            "notes": list(found.trace.notes),
        }
        typer.echo(json.dumps(document, indent=2))
    else:
        for example in found.examples:
            typer.echo(example)
        if found.bad_rows > len(found.examples):
            typer.echo(f"… and {found.bad_rows - len(found.examples):,} more.")
        for note in found.trace.notes:
            typer.echo(f"Note: {note}")
        verdict = f"{found.bad_rows:,} bad rows" if found.bad_rows else "no bad row"
        typer.echo(f"{trace}: {len(found.trace):,} good requests, {verdict}.")
    if found.bad_rows:
        raise typer.Exit(1)


@app.command()
def convert(
    trace: Source,
    to: Annotated[str | None, typer.Option("--to", help="Format to write.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write; NAME.FORMAT.EXTENSION if not given.")
    ] = None,
    format: Format = None,
    on_bad_row: OnBadRow = "error",
    bad_rows: BadRows = None,
    limit: Limit = None,
    seed: Seed = 0,
    spread_ties: SpreadTies = False,
    tokenizer: Tokenizer = None,
    output_tokens: OutputTokens = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a trace in another format.

    For example: lengthwise trace convert requests.csv --to mooncake
    """
    if out is None:
        out = _named_for(trace, to)
    read = load(
        trace,
        format=format,
        limit=limit,
        seed=seed,
        on_bad_row=on_bad_row,
        bad_rows=bad_rows,
        spread_ties=spread_ties,
        tokenizer=tokenizer,
        output_tokens=output_tokens,
    )
    _save(read, out, to, force, as_json)


@app.command()
def cut(
    trace: Source,
    out: Out,
    start: Annotated[float | None, typer.Option(help="From this second on.")] = None,
    end: Annotated[float | None, typer.Option(help="To before this second.")] = None,
    sample: Annotated[float | None, typer.Option(help="A random share of the requests.")] = None,
    first: Annotated[int | None, typer.Option(min=1, help="The first so many requests.")] = None,
    to: To = None,
    format: Format = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Part of a trace: a time window, then a random sample, then the first requests.

    For example: lengthwise trace cut requests.csv --start 60 --end 600 --out part.csv
    """
    from traces import edit

    part = load(trace, format=format, seed=seed)
    if start is None and end is None and sample is None and first is None:
        raise TraceError("nothing to cut: give --start, --end, --sample or --first.")
    if start is not None or end is not None:
        part = edit.window(part, start or 0.0, float("inf") if end is None else end)
    if sample is not None:
        part = edit.sample(part, sample, seed)
    if first is not None:
        part = part.head(first).noted(f"cut to the first {first:,}")
    _save(part, out, to, force, as_json)


@app.command()
def scale(
    trace: Source,
    out: Out,
    rate: Annotated[float, typer.Option(help="Arrivals so many times as fast.")] = 1.0,
    prompt: Annotated[float, typer.Option(help="Prompt lengths times this.")] = 1.0,
    output: Annotated[float, typer.Option(help="Output lengths times this.")] = 1.0,
    to: To = None,
    format: Format = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """The same requests faster or slower, longer or shorter.

    For example: lengthwise trace scale requests.csv --rate 2 --out faster.csv
    """
    from traces import edit

    read = load(trace, format=format, rate_scale=rate, seed=seed).noted(f"arrivals × {rate:g}")
    _save(edit.scale_lengths(read, prompt, output), out, to, force, as_json)


@app.command()
def merge(
    traces: Annotated[list[str], typer.Argument(metavar="TRACE...", help="Two or more traces.")],
    out: Out,
    to: To = None,
    format: Format = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Traces laid over one another from time 0; each request keeps its origin as its tenant.

    For example: lengthwise trace merge chat.csv code.csv --out both.csv
    """
    from traces import edit

    parts = [load(source, format=format, seed=seed) for source in traces]
    _save(edit.merge(parts), out, to, force, as_json)


@app.command()
def generate(
    out: Out,
    requests: Annotated[int | None, typer.Option(min=1, help="How many requests.")] = None,
    duration: Annotated[float | None, typer.Option(help="Or how many seconds.")] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="constant, poisson (default), gamma:CV, weibull:CV, on-off:ON_S:OFF_S, "
            "diurnal:PEAK[:PERIOD_S], file:PATH."
        ),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second.")] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="fixed:N, uniform:LOW:HIGH, lognormal:MEAN:SIGMA[:MOST], zipf:EXPONENT:MOST, "
            "pareto:ALPHA:LEAST[:MOST], file:PATH."
        ),
    ] = None,
    output: Annotated[str | None, typer.Option(help="As --prompt.")] = None,
    joint: Annotated[
        str | None, typer.Option(help="Draw (prompt, output) pairs from this trace.")
    ] = None,
    rank_correlation: Annotated[
        float | None, typer.Option(help="Spearman's, of prompt and output.")
    ] = None,
    spec: Annotated[
        Path | None, typer.Option(help="YAML file instead; several tenants go there.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything drawn.")] = None,
    to: To = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make a trace from distributions, or from a YAML spec.

    For example: lengthwise trace generate --spec spec.yaml --requests 500 --out made.csv
    """
    from traces.generate import generate as generate_trace
    from traces.short import spec_of_flags
    from traces.spec import load_spec

    single = {
        "arrivals": arrivals,
        "rate": rate,
        "prompt": prompt,
        "output": output,
        "joint": joint,
        "rank_correlation": rank_correlation,
    }
    given = {name: value for name, value in single.items() if value is not None}
    if spec is not None and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise TraceError(f"--spec already says what {flags} would. Give one or the other.")
    chosen = load_spec(spec) if spec is not None else spec_of_flags(given)
    wanted = {"requests": requests, "duration_s": duration, "seed": seed}
    changes = {name: value for name, value in wanted.items() if value is not None}
    _save(generate_trace(_changed(chosen, changes)), out, to, force, as_json)


@app.command()
def fit(
    trace: Source,
    out: Out,
    format: Format = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a spec (YAML) from which `generate --spec` makes traces like this one.

    For example: lengthwise trace fit requests.csv --out spec.yaml
    """
    from traces.fit import fit as fit_spec
    from traces.spec import save_spec

    _free(out, force)
    read = load(trace, format=format, seed=seed)
    spec = fit_spec(read)
    about = f"Fitted to {read.name}: {len(read):,} requests in {read.span_s:g} s."
    save_spec(spec, out, about)
    if as_json:
        document = {"out": str(out), "tenants": len(spec.tenants), "requests": len(read)}
        typer.echo(json.dumps(document, indent=2))
    else:
        typer.echo(f"{out}: a spec of {len(spec.tenants)} tenant(s). {about}")


def _changed(spec: Spec, changes: dict[str, Any]) -> Spec:
    """The spec with its requests, duration or seed replaced, and checked again."""
    from traces.spec import Spec, checked

    if "requests" in changes and "duration_s" not in changes:
        changes = {**changes, "duration_s": None}
    return checked(Spec, {**spec.model_dump(), **changes}, "generate")


def _named_for(trace: str, to: str | None) -> Path:
    """The file that `convert` writes when none is named."""
    from traces.write import WRITERS

    if to is None:
        raise TraceError("give --to FORMAT, --out FILE, or both.")
    if to not in WRITERS:
        raise TraceError(f"format {to!r} cannot be written. Choose {', '.join(WRITERS)}.")
    name = Path(trace).name.split(".")[0]
    extension = WRITERS[to].extension
    return Path(f"{name}{extension}" if extension == f".{to}" else f"{name}.{to}{extension}")


def _free(out: Path, force: bool) -> None:
    """Refuse to write over a file unless told to."""
    if out.exists() and not force:
        raise TraceError(f"{out}: exists. Name another file, or overwrite it with --force.")


def _save(trace: Trace, out: Path, to: str | None, force: bool, as_json: bool) -> None:
    """Write a trace and say what was written."""
    from traces.write import write

    _free(out, force)
    written = write(trace, out, to)
    if as_json:
        document = {
            "out": str(out),
            "requests": len(written),
            "span_s": written.span_s,
            "total_prompt_tokens": int(written.prompt_tokens.sum()),
            "total_output_tokens": int(written.output_tokens.sum()),
            "notes": list(written.notes),
        }
        typer.echo(json.dumps(document, indent=2))
        return
    for note in written.notes:
        typer.echo(f"Note: {note}")
    typer.echo(f"{out}: {len(written):,} requests in {written.span_s:,.6g} s.")
