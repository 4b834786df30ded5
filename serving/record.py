"""The record of one run: its configuration, its tables, and the figures made of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from serving.distribution import Distribution
from serving.folder import RecordExists, ensure_free, new_folder
from serving.metrics import Folded, latencies, summarize
from serving.parquet import Arrays, RecordError, Stored, make_table, write_arrays, write_table
from serving.tables import EVENTS, REQUESTS, STEPS

if TYPE_CHECKING:
    import pandas as pd

    Table = pd.DataFrame | Arrays | Stored | None

__all__ = ["Record", "RecordError", "RecordExists", "ensure_free", "make_table", "new_folder"]

TABLES = {"requests": REQUESTS, "steps": STEPS, "events": EVENTS}
"""The tables of a record, each in a file of its own, with their columns."""

KEPT = {"full": tuple(TABLES), "requests": ("requests",), "summary": ()}
"""Tables on disk, by what is asked for as `--record`."""


def kept(config: Mapping[str, Any], name: str = "config") -> tuple[str, ...]:
    """The tables that a record of this configuration has on disk.

    Raises:
        RecordError: `run` in the configuration is no object, or its `record` none of `KEPT`; the
            message begins with `name`.
    """
    run = config.get("run", {})
    if not isinstance(run, dict):
        raise RecordError(f"{name}: run is {run!r}, not an object")
    level = run.get("record", "full")
    if not isinstance(level, str) or level not in KEPT:
        raise RecordError(f"{name}: record {level!r} is none of {', '.join(KEPT)}")
    return KEPT[level]


class Record:
    """One run, whichever backend made it; all reports, plots and comparisons are made from it.

    Its tables are `requests` (a row a request, columns as `serving.tables.REQUESTS`), `steps` (a
    row a step) and `events` (a row a change, never one a decode).
    """

    def __init__(
        self,
        config: dict[str, Any],
        requests: Table,
        steps: Table,
        events: Table,
        notes: tuple[str, ...] = (),
        folded: Folded | None = None,
        summary: dict[str, Any] | None = None,
    ) -> None:
        """A record of tables in memory or in files.

        Args:
            config: what was run, with which settings and versions, as JSON has it.
            requests, steps, events: the tables; None for one that is not kept.
            notes: what a reader of the figures should know, a sentence each.
            folded: what the figures need of steps and events, where that is known without them.
            summary: the figures, where they are known without tables.

        Raises:
            RecordError: a table without one of its columns, or with one of another type.
        """
        self.config, self.notes = config, notes
        self._tables = {"requests": requests, "steps": steps, "events": events}
        self._folder: Path | None = None  # that it was loaded from
        for name, table in self._tables.items():
            if not isinstance(table, Arrays | Stored | None):
                _check(table, TABLES[name], name)
        if folded is not None:
            self.folded = folded
        if summary is not None:
            self.summary = summary

    def __repr__(self) -> str:
        known = (str(self.config[name]) for name in ("policy", "model") if self.config.get(name))
        return f"<Record: {', '.join(known)}, {self.config.get('backend')}>"

    @cached_property
    def requests(self) -> pd.DataFrame:
        """A row a request."""
        return self._table("requests")

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row a step."""
        return self._table("steps")

    @cached_property
    def events(self) -> pd.DataFrame:
        """A row a change."""
        return self._table("events")

    def _table(self, name: str) -> pd.DataFrame:
        """A table by name, read from its file if it is in one.

        Raises:
            RecordError: it was not kept, or cannot be read.
        """
        table = self._tables[name]
        if table is None:
            path = f"{name}.parquet" if self._folder is None else self._folder / f"{name}.parquet"
            raise RecordError(
                f"{path}: needed here, but --record {self.config['run']['record']} does not keep "
                "it; run it again with --record full"
            )
        return table.read() if isinstance(table, Arrays | Stored) else table

    @property
    def request_columns(self) -> Mapping[str, NDArray[Any]]:
        """The request table as arrays, shape [requests] each, without making it a table."""
        table = self._tables["requests"]
        if isinstance(table, Arrays):
            return table.values
        return {name: np.asarray(self.requests[name]) for name in REQUESTS}

    def step_columns(self, *names: str) -> Mapping[str, NDArray[Any]]:
        """Columns of the step table as arrays, shape [steps] each, without reading the others.

        Raises:
            RecordError: the table was not kept, or cannot be read.
        """
        table = self._tables["steps"]
        if isinstance(table, Stored) and "steps" not in self.__dict__:
            return table.values(names)
        return {name: self.steps[name].to_numpy() for name in names}

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The figures of `serving.metrics.summarize`; limits from config `slo` and `goodput`."""
        return summarize(
            self.config,
            self.request_columns,
            self.folded,
            slo=self.config.get("slo"),
            goodput=self.config.get("goodput"),
        )

    @cached_property
    def folded(self) -> Folded:
        """What its figures need of its steps and events."""
        return Folded.of(self.requests, self.steps, self.events)

    @cached_property
    def latencies(self) -> dict[str, Distribution]:
        """The distributions of `serving.metrics.LATENCIES` over finished requests, in s."""
        return latencies(self.request_columns, self.folded)

    def save(self, folder: Path | str, force: bool = False) -> Path:
        """Write the record as a folder that appears whole or not at all.

        Args:
            folder: `config.json`, `summary.json`, `requests.parquet`, `steps.parquet` and
                `events.parquet` will be in it.
            force: replace an earlier record.

        Raises:
            RecordExists: the folder is there already and `force` was not given.
            FolderError: it cannot be written, or with `force` is no record that may be replaced.
        """
        with new_folder(folder, force) as temporary:
            self.write(temporary)
        return Path(folder)

    def write(self, folder: Path) -> None:
        """Write the record's files into a folder that exists (`save` is what users want)."""
        config = {**self.config, "notes": list(self.notes)} if self.notes else self.config
        dump_json(config, folder / "config.json")
        dump_json(self.summary, folder / "summary.json")
        for name in kept(self.config):
            table, path = self._tables[name], folder / f"{name}.parquet"
            if isinstance(table, Arrays):
                write_arrays(table, path)
            elif not isinstance(table, Stored):
                write_table(self._table(name), TABLES[name], path)
            elif table.path != path:
                shutil.copyfile(table.path, path)

    @classmethod
    def load(cls, folder: Path | str) -> Record:
        """Read a record that `save` wrote.

        Raises:
            RecordError: no such folder, a file missing or damaged, a column missing.
        """
        folder = Path(folder)
        if not folder.is_dir():
            found = "is a file, not a record's folder" if folder.exists() else "no such folder"
            raise RecordError(f"{folder}: {found}; give one that a run wrote")
        place = folder / "config.json"
        config = _read_json(place)
        notes = config.pop("notes", [])
        if not isinstance(notes, list):
            raise RecordError(f"{place}: notes is {notes!r}, not a list")
        names = kept(config, str(place))
        requests, steps, events = (
            Stored(folder / f"{name}.parquet", TABLES[name]).read() if name in names else None
            for name in TABLES
        )
        summary = None if len(names) == len(TABLES) else _read_json(folder / "summary.json")
        told = tuple(str(note) for note in notes)
        record = cls(config, requests, steps, events, told, summary=summary)
        record._folder = folder
        return record


def dump_json(value: Mapping[str, Any], path: Path) -> None:
    """Write a JSON file for people and programs: indented, UTF-8, an undefined figure as null.

    Raises:
        RecordError: something that JSON does not have, NaN and infinity included.
    """
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{path.name}: {error}") from error
    path.write_text(text + "\n", encoding="utf-8")


def _check(table: pd.DataFrame, columns: Mapping[str, str], name: str) -> None:
    """Raise RecordError unless `table` has exactly `columns`, in this order and of these types."""
    if list(table.columns) != list(columns):
        lacks = [c for c in columns if c not in table.columns]
        more = [c for c in table.columns if c not in columns]
        raise RecordError(f"{name}: lacks columns {lacks}, has others {more}, or in another order")
    for column, dtype in columns.items():
        if str(table[column].dtype) != dtype:
            raise RecordError(f"{name}: {column} is {table[column].dtype}, not {dtype}")


def _read_json(path: Path) -> dict[str, Any]:
    """Read one of the record's JSON files."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file; is {path.parent} a record folder?") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: not a readable JSON file ({error})") from error
    if not isinstance(value, dict):
        raise RecordError(f"{path}: is not a JSON object")
    return value
