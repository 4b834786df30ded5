"""Fit what share of a GPU its kernels reach, from tables of measured kernels, and say how well."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from sim.curve import Curve
from sim.hardware import Decode, Gemm, Hardware, HardwareError, Prefill, load_hardware
from sim.operations import decode_attention_s, prefill_attention_s, product_s

GPUS = {
    "a100_sxm": "a100-80g",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
"""The names of GPUs in the tables' file names."""

COLUMNS = {
    "gemm": ("gemm_dtype", "m", "n", "k"),
    "context_attention": ("batch_size", "isl", "num_heads", "num_key_value_heads"),
    "generation_attention": ("batch_size", "context", "num_heads", "num_key_value_heads"),
    "allreduce": ("num_gpus", "message_size", "backend"),
}
"""Columns of each kind of table, beside `latency_ms`."""

SIBLINGS = {"h200": "h100"}
"""A GPU of the same chip, whose compute-bound kernels stand in for a table that cannot be right."""

HEAD_DIM = 128
"""Of every attention kernel in the tables."""

FOLDS = 5
PRIOR = 0.02
_OUTPUTS = tuple(float(2**e) for e in (17, 19, 20, 21, 22, 23, 24, 26))
_WEIGHT_BYTES = tuple(float(2**e) for e in (23, 24, 25, 26, 28))
_KV_BYTES = tuple(float(4**e) for e in range(10, 16))
_MESSAGES = tuple(float(4**e) for e in range(4, 15))

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """How well one kernel of one GPU is predicted."""

    gpu: str
    op: str
    rows: int
    error: float | None
    """Mean absolute relative error on rows left out of the fit; None for a rejected table."""
    median: float | None
    note: str = ""


@dataclass(frozen=True)
class Table:
    """One file of measured kernels."""

    path: Path
    gpu: str
    op: str
    engine: str
    rows: pd.DataFrame


def read_ops(folder: Path) -> list[Table]:
    """The kernel tables of a folder, named `GPU.OPERATION.ENGINE.csv`.

    Raises:
        HardwareError: no table, a column missing, or a cell that is no positive number.
    """
    tables = []
    for path in sorted(folder.glob("*.csv")):
        gpu, op, engine = path.stem.split(".", 2) if path.stem.count(".") >= 2 else ("", "", "")
        if gpu not in GPUS or op not in COLUMNS:
            continue
        rows = pd.read_csv(path)
        for column in (*COLUMNS[op], "latency_ms"):
            if column not in rows:
                raise HardwareError(
                    f"{path}: no column {column}; found {', '.join(map(str, rows.columns))}"
                )
            if column in ("gemm_dtype", "backend"):
                continue
            numbers = pd.to_numeric(rows[column], errors="coerce")
            bad = np.flatnonzero(~(numbers > 0).to_numpy())
            if bad.size:
                line, cell = int(bad[0]) + 2, rows[column].iloc[int(bad[0])]
                raise HardwareError(f"{path}:{line}: {column} must be positive, found {cell}")
            rows[column] = numbers
        tables.append(Table(path, GPUS[gpu], op, engine, rows))
    if not tables:
        raise HardwareError(
            f"--ops {folder}: no table of kernels; expected files such as "
            "h100_sxm.gemm.vllm-0.19.0.csv"
        )
    return tables


Columns = dict[str, Array]
"""The numbers of a table by column: arrays, since a fit evaluates them thousands of times."""

Predict = Callable[[Any, Columns], Array]


@dataclass(frozen=True)
class Shape:
    """One kind of coefficients: where its numbers start and what they may be."""

    kind: type[Any]
    start: Array
    low: Array
    high: Array
    widths: dict[str, int]
    """The fields in the order of the vector, with how many numbers each takes; 0 for a scalar."""
    fixed: dict[str, tuple[float, ...]]

    def build(self, x: Array) -> Any:
        """The coefficients that a vector stands for."""
        values: dict[str, Any] = dict(self.fixed)
        at = 0
        for name, width in self.widths.items():
            part = tuple(float(v) for v in x[at : at + max(width, 1)])
            values[name] = part if width else part[0]
            at += len(part)
        return self.kind(**values)


Bounds = tuple[float, float, float]
"""Where a coefficient starts, its least and its greatest."""


def _shape(
    kind: type[Any], bounds: dict[str, Bounds | list[Bounds]], **fixed: tuple[float, ...]
) -> Shape:
    flat: list[Bounds] = []
    widths = {}
    for name, bound in bounds.items():
        flat += bound if isinstance(bound, list) else [bound]
        widths[name] = len(bound) if isinstance(bound, list) else 0
    start, low, high = (np.array(v) for v in zip(*flat, strict=True))
    return Shape(kind, start, low, high, widths, fixed)


GEMM = _shape(
    Gemm,
    {
        "latency_s": (4e-6, 1e-6, 3e-5),
        "depth_s": (2e-9, 1e-11, 2e-8),
        "products_per_output": (200.0, 1.0, 3000.0),
        "compute": [(0.6, 0.1, 0.99)] * len(_OUTPUTS),
        "memory": [(0.8, 0.1, 3.0)] * len(_WEIGHT_BYTES),
    },
    outputs=_OUTPUTS,
    bytes=_WEIGHT_BYTES,
)
PREFILL = _shape(
    Prefill,
    {
        "latency_s": (1e-5, 3e-6, 3e-5),
        "compute": (0.7, 0.2, 0.99),
        "pairs_per_token": (300.0, 1.0, 3000.0),
        "pairs_per_row": (3000.0, 1.0, 30000.0),
        "memory": (0.7, 0.2, 1.0),
        "depth_s": (1e-8, 1e-10, 1e-7),
    },
)
DECODE = _shape(
    Decode,
    {
        "latency_s": (1e-5, 3e-6, 3e-5),
        "head_s": (3e-8, 1e-9, 2e-7),
        "memory": [(0.8, 0.05, 4.0)] * len(_KV_BYTES),
    },
    bytes=_KV_BYTES,
)


def fit(shape: Shape, predict: Predict, rows: Columns) -> Any:
    """Coefficients that minimise the relative error of `predict` on `rows`.

    Works on logarithms of coefficients and times, with a loss that far outliers cannot bend.
    """
    truth = np.log(rows["latency_ms"] / 1e3)

    start = np.log(shape.start)

    def residual(x: Array) -> Array:
        miss = np.log(predict(shape.build(np.exp(x)), rows)) - truth
        # what no row decides (a share that another arm of the max hides) stays where it started
        return np.concatenate([miss, PRIOR * (x - start)])

    found = least_squares(
        residual,
        start,
        bounds=(np.log(shape.low), np.log(shape.high)),
        loss="soft_l1",
        f_scale=0.1,
        ftol=1e-6,
    )
    return shape.build(np.exp(found.x))


def held_out(shape: Shape, predict: Predict, rows: Columns) -> Array:
    """Relative error of every row, each predicted by a fit on the other folds, shape [rows]."""
    count = len(rows["latency_ms"])
    fold = np.random.default_rng(0).permutation(count) % FOLDS
    error = np.zeros(count)
    for f in range(FOLDS):
        rest, test = ({n: c[m] for n, c in rows.items()} for m in (fold != f, fold == f))
        found = fit(shape, predict, rest)
        error[fold == f] = predict(found, test) / (test["latency_ms"] / 1e3) - 1
    return error


def _gemm(gpu: Hardware, dtype: str) -> Predict:
    size, peak = (1, gpu.fp8_flops) if dtype == "fp8" else (2, gpu.bf16_flops)
    return lambda c, r: product_s(
        c, peak, gpu.bytes_per_s, r["m"], r["n"], r["k"], weight=size, activation=size
    )


def _prefill(gpu: Hardware) -> Predict:
    def predict(c: Prefill, r: Columns) -> Array:
        rows, width = r["batch_size"], r["isl"]
        tokens = rows * width
        return prefill_attention_s(
            c,
            gpu.bf16_flops,
            gpu.bytes_per_s,
            r["num_heads"],
            r["num_key_value_heads"],
            HEAD_DIM,
            tokens * (width + 1) / 2,
            tokens,
            rows,
            tokens,
        )

    return predict


def _decode(gpu: Hardware) -> Predict:
    def predict(c: Decode, r: Columns) -> Array:
        kv = r["num_key_value_heads"]
        kv_bytes = 4.0 * HEAD_DIM * r["batch_size"] * r["context"] * kv
        return decode_attention_s(c, gpu.bytes_per_s, r["batch_size"], kv, kv_bytes)

    return predict


def impossible(gpu: Hardware, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Rows of a prefill attention table that would need more than the dense peak, shape [rows]."""
    width = rows["isl"]
    flops = 2.0 * HEAD_DIM * rows["num_heads"] * rows["batch_size"] * width * (width + 1)
    return (flops / (rows["latency_ms"] / 1e3) > gpu.bf16_flops).to_numpy()


def fit_table(table: Table) -> Iterator[tuple[str, Any, Score]]:
    """Fit one table: (operation, coefficients, score), twice for products in two dtypes.

    Coefficients are None where the table cannot be right and a sibling's have to stand in for it;
    those of an all-reduce are a curve for each number of GPUs.
    """
    gpu, rows = load_hardware(table.gpu), table.rows
    if table.op == "gemm":
        for dtype, name in (("bf16", "bfloat16"), ("fp8", "fp8")):
            part = rows[rows["gemm_dtype"] == name]
            if len(part):
                yield _fitted(table.gpu, f"gemm-{dtype}", GEMM, _gemm(gpu, dtype), part)
    elif table.op == "generation_attention":
        yield _fitted(table.gpu, "decode attention", DECODE, _decode(gpu), rows)
    elif table.op == "context_attention":
        wrong = int(impossible(gpu, rows).sum())
        if wrong:
            note = f"rejected: {wrong} rows need more than the dense peak"
            if table.gpu not in SIBLINGS:
                raise HardwareError(f"{table.path}: {note}, and no other GPU has the same chip")
            note += f"; {SIBLINGS[table.gpu]}'s coefficients stand in"
            score = Score(table.gpu, "prefill attention", len(rows), None, None, note)
            yield "prefill attention", None, score
        else:
            yield _fitted(table.gpu, "prefill attention", PREFILL, _prefill(gpu), rows)
    else:
        yield _allreduce(table)


def _fitted(
    gpu: str, op: str, shape: Shape, predict: Predict, rows: pd.DataFrame
) -> tuple[str, Any, Score]:
    numbers = {str(n): c.to_numpy(np.float64) for n, c in rows.select_dtypes("number").items()}
    error = np.abs(held_out(shape, predict, numbers))
    score = Score(gpu, op, len(rows), float(error.mean()), float(np.median(error)))
    return op, fit(shape, predict, numbers), score


def _allreduce(table: Table) -> tuple[str, dict[int, Curve], Score]:
    """Curves through every other message size; the sizes between are the rows left out."""
    rows = table.rows[table.rows["backend"] == "vllm_graph"]
    curves, errors = {}, []
    for gpus, part in rows.groupby("num_gpus"):
        part = part.sort_values("message_size")
        size = part["message_size"].to_numpy(np.float64)
        seconds = part["latency_ms"].to_numpy(np.float64) / 1e3
        kept = np.isin(size, _MESSAGES)
        curve = Curve((0.0, *size[kept]), (float(seconds[0]), *seconds[kept]))
        curves[int(str(gpus))] = curve
        errors.append(np.abs(curve.many(size[~kept]) / seconds[~kept] - 1))
    error = np.concatenate(errors)
    score = Score(table.gpu, "all-reduce", len(rows), float(error.mean()), float(np.median(error)))
    return "all-reduce", curves, score


STEP_OPS = ("gemm-bf16", "prefill attention", "decode attention")
"""The kernels that nearly all of a step's time goes to."""


@dataclass(frozen=True)
class KernelFits:
    """What the tables of a folder say: coefficients by GPU and operation, and how well they do."""

    coefficients: dict[str, dict[str, Any]]
    scores: tuple[Score, ...]
    sources: dict[str, str]

    def to_json(self) -> str:
        """The text of `efficiency.json`, four digits a figure."""
        out: dict[str, Any] = {}
        for gpu, ops in sorted(self.coefficients.items()):
            prefill = ops["prefill attention"]
            if prefill is None:
                prefill = self.coefficients[SIBLINGS[gpu]]["prefill attention"]
            out[gpu] = {
                "source": self.sources[gpu],
                "error": max(
                    score.error
                    for score in self.scores
                    if score.gpu == gpu and score.op in STEP_OPS and score.error is not None
                ),
                "gemm": {
                    dtype: asdict(ops[f"gemm-{dtype}"])
                    for dtype in ("bf16", "fp8")
                    if f"gemm-{dtype}" in ops
                },
                "prefill": asdict(prefill),
                "decode": asdict(ops["decode attention"]),
                "allreduce": {
                    str(n): {"bytes": c.xs, "seconds": c.ys}
                    for n, c in ops.get("all-reduce", {}).items()
                },
            }
        return json.dumps(_rounded(out), indent=1) + "\n"


def fit_ops(folder: Path, progress: Callable[[list[Table]], Iterable[Table]] = iter) -> KernelFits:
    """Fit every kernel table of a folder; `progress` may wrap the tables to show how far it is.

    Raises:
        HardwareError: see `read_ops`.
    """
    tables = read_ops(folder)
    coefficients: dict[str, dict[str, Any]] = {}
    scores: list[Score] = []
    engines: dict[str, set[str]] = {}
    for table in progress(tables):
        engines.setdefault(table.gpu, set()).add(table.engine)
        for op, found, score in fit_table(table):
            coefficients.setdefault(table.gpu, {})[op] = found
            scores.append(score)
    sources = {
        gpu: f"aiconfigurator (Apache-2.0), kernels of {', '.join(sorted(names))}; "
        f"{sum(s.rows for s in scores if s.gpu == gpu)} rows, 'calibrate --ops'"
        for gpu, names in engines.items()
    }
    return KernelFits(coefficients, tuple(scores), sources)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_rounded(v) for v in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() else float(f"{value:.4g}")
    return value
