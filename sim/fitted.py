"""A step's time from a fit of measured steps: read from a file, evaluated, kept within bounds."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.step import Features
from sim.hardware import Hardware
from sim.hull import Hull
from sim.models import Model
from sim.terms import FAR_KEYS, Terms
from sim.useful import useful_bytes, useful_flops

FORMAT = "lengthwise-cost/2"
REGIONS = ("decode", "prefill", "mixed")
"""A step without prefill, one without decodes, one with both."""


TABLE = 4096
"""Token and row counts for which a curve's values are looked up, not worked out."""


class CostFileError(ValueError):
    """A cost file that cannot be read."""


@dataclass(frozen=True)
class Provenance:
    """What was measured, and where; None for what nobody said."""

    rows: int = 0
    source: str = ""
    model: str | None = None
    layers: int | None = None
    hidden: int | None = None
    hardware: str | None = None
    tp: int = 1
    dtype: str | None = None
    versions: str | None = None
    date: str | None = None
    lengthwise: str | None = None


@dataclass(frozen=True)
class Error:
    """How far held-out rows were from their prediction: absolute relative errors."""

    folds: int
    mean: float
    median: float
    p90: float
    regions: Mapping[str, float]
    """Mean by region."""
    residuals: Mapping[str, tuple[float, ...]]
    """measured / predicted − 1 of held-out rows by region: quantiles, evenly spaced."""


@dataclass(frozen=True)
class Calibration:
    """All that a cost file holds."""

    terms: Terms
    provenance: Provenance
    error: Error
    hulls: Mapping[str, Hull] = field(default_factory=dict)
    overhead_layer_s: float = 0.0
    overhead_from: str | None = None
    """The run that the overhead was fitted on: predictions of that run are not blind."""

    def save(self, path: Path) -> None:
        """Write the file; a killed write leaves nothing half done."""
        raw = {"format": FORMAT, "unit": "seconds", **asdict(self)}
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
        os.replace(part, path)

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read a file that `save` wrote.

        Raises:
            CostFileError: unreadable, of another format, or a field missing or out of range.
        """
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CostFileError(f"--cost {path}: not a readable JSON file ({error})") from None
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            found = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
            raise CostFileError(
                f"--cost {path}: expected a file of 'lengthwise calibrate' with format "
                f"{FORMAT!r}, found {found!r}; calibrate again"
            )
        try:
            return cls(
                terms=Terms.from_dict(raw["terms"]),
                provenance=_record(Provenance, raw["provenance"]),
                error=_record(Error, raw["error"]),
                hulls={name: _record(Hull, h) for name, h in raw["hulls"].items()},
                overhead_layer_s=float(raw["overhead_layer_s"]),
                overhead_from=raw["overhead_from"],
            )
        except KeyError as error:
            raise CostFileError(f"--cost {path}: {error} is missing") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise CostFileError(f"--cost {path}: {error}") from None


def _record(kind: type[Any], raw: Mapping[str, Any]) -> Any:
    """A dataclass from JSON, lists as tuples."""
    missing = {f.name for f in fields(kind)} - set(raw)
    if missing:
        raise ValueError(f"{kind.__name__.lower()} lacks {', '.join(sorted(missing))}")
    return kind(**{f.name: _tuples(raw[f.name]) for f in fields(kind)})


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(v) for v in value)
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return value


class FittedCost:
    """A cost model from a calibration; for the terms see `sim.terms.Terms`.

    `peak_flops`, `peak_bytes_per_s`, `flops` and `bytes` are None until `on` has said what model
    and hardware the time is of.
    """

    def __init__(
        self,
        calibration: Calibration,
        *,
        shape: Model | None = None,
        overhead_layer_s: float | None = None,
        allreduce_bytes_per_s: float | None = None,
        allreduce_s: float = 0.0,
    ) -> None:
        """Ready the curves.

        `shape` has the layers where the calibration does not name its model. `overhead_layer_s`
        replaces the file's. With tp > 1 every layer does two all-reduces of
        `allreduce_s` + slots × hidden × 2 bytes / `allreduce_bytes_per_s`, which measurements of
        one GPU's kernels lack. An overhead is below 0 where an engine saves kernels that were
        measured, by fusing them.

        Raises:
            ValueError: an overhead or all-reduce, and neither names the model; an overhead below
                0 by more than a step takes.
        """
        self.calibration = calibration
        made = calibration.provenance
        overhead = calibration.overhead_layer_s if overhead_layer_s is None else overhead_layer_s
        self.overhead_layer_s = overhead
        reduces = made.tp > 1 and (allreduce_bytes_per_s is not None or allreduce_s > 0)
        layers, hidden = made.layers or 0, made.hidden or 0
        if shape is not None and not layers:
            layers, hidden = shape.layers, shape.hidden
        if (overhead or reduces) and not layers:
            raise ValueError(
                "this cost file does not say how many layers its model has: overhead and "
                "all-reduce are a layer's; calibrate again with --model"
            )
        t = calibration.terms
        self._scale = (1.0,) * len(REGIONS)  # a factor by region, see `draws`
        self._step = t.step + layers * overhead + (2.0 * layers * allreduce_s if reduces else 0.0)
        self._slot = (
            4.0 * layers * hidden / allreduce_bytes_per_s
            if reduces and allreduce_bytes_per_s is not None
            else 0.0
        )
        n = np.arange(TABLE)
        self._slots, self._prefill_slots = t.slots.curve(), t.prefill_slots.curve()
        self._chunk_kv, self._mixed_rows = t.chunk_kv.curve(), t.mixed_rows.curve()
        self._far_rows = t.far_rows.curve()
        self._decode_tail, self._mixed_tail = t.decode_tail.curve(), t.mixed_tail.curve()
        self._of_slots: list[float] = (self._step + n * self._slot + self._slots.many(n)).tolist()
        self._of_prefill: list[float] = (t.prefill + self._prefill_slots.many(n)).tolist()
        self._of_chunk: list[float] = self._chunk_kv.many(n).tolist()
        self._of_rows: list[float] = self._mixed_rows.many(n).tolist()
        self._of_far: list[float] = self._far_rows.many(n).tolist()
        self._of_decode_tail: list[float] = self._decode_tail.many(n).tolist()
        self._of_mixed_tail: list[float] = self._mixed_tail.many(n).tolist()
        if self._of_slots[1] < 0:
            least = overhead - self._of_slots[1] / (layers or 1)
            raise ValueError(
                f"--overhead-us-per-layer {1e6 * overhead:g} (or the cost file's overhead_layer_s) "
                f"leaves a step of one token no time; give more than {1e6 * least:.3g}"
            )
        self._decode_pairs, self._mixed_pairs = t.decode_pairs.curve(), t.mixed_pairs.curve()
        self._sampled, self._prefill, self._pair = t.sampled_row, t.prefill, t.prefill_pair
        self._key, self._decode_row, self._mixed_row = t.key, t.decode_row, t.mixed_row
        self.flops: Any = None
        self.bytes: Any = None
        self.peak_flops: float | None = None
        self.peak_bytes_per_s: float | None = None

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> FittedCost:
        """The cost model of a file; options as in the constructor.

        Raises:
            CostFileError: see `Calibration.load`.
        """
        return cls(Calibration.load(Path(path)), **options)

    def save(self, path: str | Path) -> None:
        """Write the calibration, with the overhead in force."""
        replace(self.calibration, overhead_layer_s=self.overhead_layer_s).save(Path(path))

    def on(
        self, model: Model, hardware: Hardware | None, tp: int, dtype: str, kv_dtype: str
    ) -> FittedCost:
        """The same, able to count the useful FLOPs and bytes of steps."""
        self.flops = lambda columns: useful_flops(model, columns)
        self.bytes = lambda columns: useful_bytes(model, dtype, kv_dtype, columns)
        if hardware is not None:
            self.peak_flops = hardware.peak_flops(dtype) * tp
            self.peak_bytes_per_s = hardware.bytes_per_s * tp
        return self

    def seconds(self, f: Features) -> float:
        """Seconds of one step; an empty step takes none."""
        slots = f.prefill_slots + f.decode_slots
        if not slots:
            return 0.0
        before = self._before_decode(f, slots)
        rows = f.decode_rows
        if not f.prefill_slots:
            curve, pairs = self._decode_pairs, f.decode_computed_pairs
            i = bisect_right(curve.xs, pairs) - 1
            decode = curve.ys[i] + (pairs - curve.xs[i]) * curve.slopes[i]
            tail = self._of_decode_tail[rows] if rows < TABLE else self._decode_tail.at(rows)
            decode += (f.decode_longest - pairs / rows) * tail
            return (before + rows * self._decode_row + decode) * self._scale[0]
        keys = f.prefill_kv / f.prefill_rows
        if not rows:
            return (before + keys * self._key) * self._scale[1]
        curve, pairs = self._mixed_pairs, f.decode_computed_pairs
        i = bisect_right(curve.xs, pairs) - 1
        mixed = curve.ys[i] + (pairs - curve.xs[i]) * curve.slopes[i]
        mean = pairs / rows
        beside = self._of_rows[rows] if rows < TABLE else self._mixed_rows.at(rows)
        total = before + rows * self._mixed_row + mixed + mean * beside
        if mean > FAR_KEYS:
            far = self._of_far[rows] if rows < TABLE else self._far_rows.at(rows)
            total += (mean - FAR_KEYS) * far
        tail = self._of_mixed_tail[rows] if rows < TABLE else self._mixed_tail.at(rows)
        longest, even = f.decode_longest, mean if mean > keys else keys
        total += ((longest if longest > keys else keys) - even) * tail
        return (total + even * self._key) * self._scale[2]

    def seconds_run(self, f: Features, k: int) -> list[float]:
        """Seconds of `k` decode steps in a row."""
        slots, rows = f.prefill_slots + f.decode_slots, f.decode_rows
        if not slots or not rows:
            return [self.seconds(f)] * k
        before = self._before_decode(f, slots)
        ahead = np.arange(k, dtype=np.int64)
        pairs, longest = f.decode_computed_pairs + rows * ahead, f.decode_longest + ahead
        if not f.prefill_slots:
            decode = self._decode_pairs.many(pairs)
            tail = self._of_decode_tail[rows] if rows < TABLE else self._decode_tail.at(rows)
            decode += (longest - pairs / rows) * tail
            value = (before + rows * self._decode_row + decode) * self._scale[0]
            return list(value.tolist())
        keys, mean = f.prefill_kv / f.prefill_rows, pairs / rows
        mixed = self._mixed_pairs.many(pairs)
        beside = self._of_rows[rows] if rows < TABLE else self._mixed_rows.at(rows)
        far = self._of_far[rows] if rows < TABLE else self._far_rows.at(rows)
        total = before + rows * self._mixed_row + mixed + mean * beside
        total += np.maximum(mean - FAR_KEYS, 0.0) * far
        tail = self._of_mixed_tail[rows] if rows < TABLE else self._mixed_tail.at(rows)
        even = np.maximum(mean, keys)
        total += (np.maximum(longest, keys) - even) * tail
        value = (total + even * self._key) * self._scale[2]
        return list(value.tolist())

    def _before_decode(self, f: Features, slots: int) -> float:
        """Everything that stays the same in a run of decode steps."""
        if slots < TABLE:
            total = self._of_slots[slots]
        else:
            total = self._step + slots * self._slot + self._slots.at(slots)
        total += f.sampled_rows * self._sampled
        tokens = f.prefill_slots
        if not tokens:
            return total
        prompts = f.prefill_rows
        if tokens < TABLE:
            total += self._of_prefill[tokens]
        else:
            total += self._prefill + self._prefill_slots.at(tokens)
        if prompts == 1 and tokens < TABLE:
            chunk_kv = self._of_chunk[tokens]
        else:
            chunk_kv = self._chunk_kv.at(tokens / prompts)
        return total + f.prefill_computed_pairs * self._pair + f.prefill_kv * chunk_kv

    def outside(self, columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_]:
        """Steps that lie outside the convex hull of the measured ones, shape [steps].

        `columns` has the step table's names. A region that was not measured is outside; empty
        steps are inside.
        """
        out = np.zeros(len(columns["prefill_slots"]), bool)
        for region, rows in regions(columns).items():
            if rows.any():
                hull = self.calibration.hulls.get(region)
                part = {name: np.asarray(c)[rows] for name, c in columns.items()}
                out[rows] = True if hull is None else hull.outside(part)
        return out

    def draws(self, count: int, seed: int = 0) -> list[FittedCost]:
        """The same cost model `count` times, each as wrong as held-out rows were.

        In each draw all steps of a region are multiplied by 1 + one residual of the calibration,
        drawn at random: errors of one run's steps go together, so a run's range is wide.
        """
        rng = np.random.default_rng(seed)
        residuals = self.calibration.error.residuals
        made = []
        for _ in range(count):
            scale = {
                region: 1.0 + float(rng.choice(residuals[region]))
                for region in REGIONS
                if residuals.get(region)
            }
            drawn = copy(self)
            drawn._scale = tuple(scale.get(region, 1.0) for region in REGIONS)
            made.append(drawn)
        return made

    def at_residual(self, share: float) -> FittedCost:
        """The same, as wrong as that quantile of the held-out rows of each kind of step."""
        residuals = self.calibration.error.residuals
        made = copy(self)
        made._scale = tuple(
            1.0 + float(np.quantile(residuals[region], share)) if residuals.get(region) else 1.0
            for region in REGIONS
        )
        return made

    def differences(self, **wanted: object) -> list[str]:
        """What of `model`, `hardware`, `tp`, `dtype`, `lengthwise` differs from the calibration's.

        One sentence each; what the calibration does not say is not a difference.
        """
        made = self.calibration.provenance
        return [
            f"the cost file was calibrated for {name} {getattr(made, name)}, not {value}"
            for name, value in wanted.items()
            if value is not None and getattr(made, name) not in (None, value)
        ]


def own_version() -> str | None:
    """The version of lengthwise that is installed; None where it only lies on the path."""
    try:
        return version("lengthwise")
    except PackageNotFoundError:
        return None


def regions(columns: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.bool_]]:
    """Which steps are of which region, shape [steps] each."""
    prefill = np.asarray(columns["prefill_slots"]) > 0
    decode = np.asarray(columns["decode_slots"]) > 0
    return {"decode": decode & ~prefill, "prefill": prefill & ~decode, "mixed": prefill & decode}
