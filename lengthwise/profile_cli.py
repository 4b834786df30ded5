"""The command `profile`: times single steps of a model, for a cost model to be fitted to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def profile(
    out: Annotated[Path, typer.Option("--out", help="The Parquet file to write.")],
    model: Annotated[
        str, typer.Option("--model", help="A built-in model, a folder or a config.json.")
    ] = "tiny",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")] = "cpu",
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="fp32, bf16 or fp16; fp32 on a CPU, else bf16.")
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option("--attention", help="flash-attn, varlen or sdpa; the best that works."),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option("--block-size", help="Tokens of a KV block.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full/--quick", help="The whole grid, or a coarse one (the default).")
    ] = False,
    max_step_tokens: Annotated[
        int | None, typer.Option("--max-step-tokens", help="Leave out larger steps.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", help="Leave out longer sequences.")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option("--gpu-memory-utilization", help="Share of the free memory for KV cache."),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Timings of each step; the median counts.")
    ] = 5,
    seed: Annotated[int, typer.Option("--seed", help="Of the order and the uneven lengths.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """Time single steps of a model over a grid of shapes; interrupted, it goes on where it was.

    For example: lengthwise profile --model tiny --device cpu --out profile.parquet
    """
    from lengthwise.console import progress
    from lengthwise.profiling import Profiling
    from serving.folder import FolderError

    if out.exists() and not force:
        raise FolderError(f"{out} exists; give another --out, or --force to replace it")
    if out.suffix != ".parquet":
        raise FolderError(f"--out {out}: a profile is a Parquet file; let its name end in .parquet")
    if not out.parent.is_dir():
        raise FolderError(f"{out.parent}: no such folder; make it, or give another --out")
    profiling = Profiling(
        out,
        model=model,
        device=device,
        dtype=dtype,
        attention=attention,
        weights=Path(model) if Path(model).is_dir() else None,
        block_size=block_size,
        full=full,
        max_step_tokens=max_step_tokens,
        max_model_len=max_model_len,
        share=share,
        seed=seed,
    )
    if not as_json:
        facts = profiling.facts
        typer.echo(
            f"{facts['model']} on {facts['hardware']}, {facts['dtype']}, {facts['attention']} "
            f"attention: {profiling.steps} steps, {repeats} times each",
            err=True,
        )
    profiling.rounds(repeats, lambda total: progress("timing", total, as_json))
    summary = profiling.finish()
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        if repeats > 1:
            typer.echo(f"three repeats of a step lie {100 * summary['median_spread']:.1f}% apart")
        typer.echo(f"profile: {out}")
