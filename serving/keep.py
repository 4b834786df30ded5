"""Where steps and events go while a run goes on: into memory, into a folder, or nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from serving.parquet import ROWS, Arrays, RowGroups, Stored, batch_of, schema_of
from serving.recorder import Columns
from serving.tables import EVENTS, STEPS

Kept = Arrays | Stored | None
"""A table in memory, or the file it lies in, or None where it is not kept."""


class Keep(Protocol):
    """Takes steps and events, and gives the tables of them."""

    def take(self, replica: int, steps: Columns, events: NDArray[np.int64]) -> None:
        """The next steps of a replica, columns as `STEPS`, and their events, shape [events, 5]."""

    def tables(self) -> tuple[Kept, Kept]:
        """The step table (in order of start and replica) and the event table (by replica)."""


class InMemory:
    """Keeps all, and makes tables at the end."""

    def __init__(self, replicas: int) -> None:
        self._steps: list[list[Columns]] = [[] for _ in range(replicas)]
        self._events: list[list[NDArray[np.int64]]] = [[] for _ in range(replicas)]

    def take(self, replica: int, steps: Columns, events: NDArray[np.int64]) -> None:
        """Keep the next steps and events of a replica."""
        self._steps[replica].append(steps)
        self._events[replica].append(events)

    def tables(self) -> tuple[Kept, Kept]:
        """Both tables; what they are made of is let go."""
        lots = [lot for own in self._steps for lot in own]
        columns = {name: np.concatenate([lot.pop(name) for lot in lots]) for name in STEPS}
        if len(self._steps) > 1:
            order = np.lexsort((columns["replica"], columns["start_s"]))
            columns = {name: column[order] for name, column in columns.items()}
        events = np.concatenate([rows for own in self._events for rows in own])
        return Arrays(columns, STEPS), Arrays(_event_columns(events), EVENTS)


class InFolder:
    """Writes Parquet files as rows come; those of several replicas lie aside until the end."""

    def __init__(self, folder: Path, replicas: int) -> None:
        self._folder = folder
        self._steps = RowGroups(folder / "steps.parquet", STEPS)
        self._events = RowGroups(folder / "events.parquet", EVENTS)
        self._aside: tuple[_Aside, _Aside] | None = None
        if replicas > 1:
            self._aside = (
                _Aside(folder / "steps.arrow", STEPS, replicas),
                _Aside(folder / "events.arrow", EVENTS, replicas),
            )
        self._starts: list[list[NDArray[np.float64]]] = [[] for _ in range(replicas)]

    def take(self, replica: int, steps: Columns, events: NDArray[np.int64]) -> None:
        """Write the next steps and events of a replica."""
        rows, lines = batch_of(steps, STEPS), batch_of(_event_columns(events), EVENTS)
        if self._aside is None:
            self._steps.add(rows)
            self._events.add(lines)
            return
        self._starts[replica].append(steps["start_s"])
        for aside, batch in zip(self._aside, (rows, lines), strict=True):
            aside.add(replica, batch)

    def tables(self) -> tuple[Kept, Kept]:
        """End the files."""
        if self._aside is not None:
            steps, events = self._aside
            for rows in steps.merged([np.concatenate(own) for own in self._starts]):
                self._steps.add(rows)
            for lines in events.in_turn():
                self._events.add(lines)
            for aside in self._aside:
                aside.remove()
        self._steps.close()
        self._events.close()
        return (
            Stored(self._folder / "steps.parquet", STEPS),
            Stored(self._folder / "events.parquet", EVENTS),
        )


class Nowhere:
    """Keeps nothing."""

    def take(self, replica: int, steps: Columns, events: NDArray[np.int64]) -> None:
        """Let them go."""

    def tables(self) -> tuple[Kept, Kept]:
        """There are none."""
        return None, None


class _Aside:
    """Rows of several replicas in one Arrow file, as they came, to be read in another order."""

    def __init__(self, path: Path, columns: dict[str, str], replicas: int) -> None:
        self._path = path
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._file = pa.ipc.new_file(str(path), schema_of(columns), options=options)
        self._batches: list[list[int]] = [[] for _ in range(replicas)]
        self._count = 0

    def add(self, replica: int, batch: pa.RecordBatch) -> None:
        """Write rows behind the others."""
        self._file.write_batch(batch)
        self._batches[replica].append(self._count)
        self._count += 1

    def in_turn(self) -> Iterator[pa.RecordBatch]:
        """The rows of the first replica, then those of the next."""
        self._file.close()
        with pa.OSFile(str(self._path)) as raw, pa.ipc.open_file(raw) as file:
            for own in self._batches:
                for number in own:
                    yield file.get_batch(number)

    def merged(self, times: Sequence[NDArray[np.float64]]) -> Iterator[pa.Table]:
        """All rows in order of time, then replica, `ROWS` at a time.

        Args:
            times: of each replica's rows, never falling, shape [its rows].
        """
        self._file.close()
        counts = [len(own) for own in times]
        replica = np.repeat(np.arange(len(times), dtype=np.int32), counts)
        replica = replica[np.lexsort((replica, np.concatenate(times)))]
        with pa.OSFile(str(self._path)) as raw, pa.ipc.open_file(raw) as file:
            ahead = [_Reader(file, own) for own in self._batches]
            for begin in range(0, len(replica), ROWS):
                whose = replica[begin : begin + ROWS]
                wanted = np.bincount(whose, minlength=len(ahead)).tolist()
                grouped = [one.read(rows) for one, rows in zip(ahead, wanted, strict=True)]
                place = np.argsort(np.argsort(whose, kind="stable"))
                yield pa.concat_tables([t for part in grouped for t in part]).take(place)

    def remove(self) -> None:
        """It is needed no longer."""
        self._path.unlink()


class _Reader:
    """Reads one replica's rows in pieces of any size."""

    def __init__(self, file: Any, batches: Sequence[int]) -> None:
        self._file = file
        self._batches = iter(batches)
        self._left: pa.Table | None = None

    def read(self, rows: int) -> list[pa.Table]:
        """The next `rows` rows."""
        found = []
        while rows:
            if self._left is None or not self._left.num_rows:
                batch = self._file.get_batch(next(self._batches))
                self._left = pa.Table.from_batches([batch])
            part = self._left.slice(0, rows)
            self._left = self._left.slice(part.num_rows)
            rows -= part.num_rows
            found.append(part)
        return found


def _event_columns(events: NDArray[np.int64]) -> Columns:
    """Events, shape [events, 5], as columns of `EVENTS`."""
    return {name: np.ascontiguousarray(events[:, i]) for i, name in enumerate(EVENTS)}
