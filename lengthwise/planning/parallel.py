"""Cells on many processes through joblib: local ones, a Dask cluster, or a Ray cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lengthwise.planning.cells import Cell, run_cell
from lengthwise.planning.store import Store
from lengthwise.ticking import ticking

STRIKES = 3
"""Workers that a cell may kill, running alone, until it is given up."""

PERIOD = 0.5
"""Seconds between two looks at how many cells are there."""


class ClusterError(ValueError):
    """A cluster that cannot be reached, or a package that is not installed."""


@dataclass(frozen=True)
class Where:
    """Where cells run: local processes, or a cluster by its address."""

    jobs: int = -1
    """Local processes; -1: one a core."""
    dask: str | None = None
    ray: str | None = None


def run_cells(
    cells: Sequence[Cell], store: Store, where: Where, ended: Callable[[int], None]
) -> dict[str, str]:
    """Run the cells; each worker stores its records as they end.

    A worker that dies takes nothing with it: what is not in the store is run again by others.

    Args:
        cells: what is not in the store yet, each key once.
        store: on a file system that all workers see.
        where: on what.
        ended: told now and then how many are in the store.

    Returns:
        Why cells failed, by key.

    Raises:
        ClusterError: a cluster that cannot be reached.
    """
    with _engine(where) as parallel, _watching(store, cells, ended):
        return _attempt(cells, store, parallel, _deaths(where))


def _attempt(
    cells: Sequence[Cell],
    store: Store,
    parallel: Engine,
    deaths: tuple[type[BaseException], ...],
    strikes: int = 0,
) -> dict[str, str]:
    """Why cells failed, by key. If a worker dies, what is left is tried in halves, down to one."""
    try:
        reasons = parallel([(run_cell, (cell, str(store.root))) for cell in cells])
    except deaths as error:
        left = [cell for cell in cells if not store.has(cell.key)]
        strikes = strikes + 1 if len(cells) == 1 else 0
        if strikes == STRIKES:
            return {cell.key: f"its worker died: {_first_line(error)}" for cell in left}
        middle = (len(left) + 1) // 2
        failed: dict[str, str] = {}
        for half in (left[:middle], left[middle:]):
            if half:
                failed |= _attempt(half, store, parallel, deaths, strikes)
        return failed
    return {c.key: why for c, why in zip(cells, reasons, strict=True) if why is not None}


Task = tuple[Callable[..., Any], tuple[Any, ...]]
Engine = Callable[[Sequence[Task]], list[Any]]


@contextmanager
def _engine(where: Where) -> Iterator[Engine]:
    """What runs tasks and returns their results in order."""
    from joblib import Parallel, delayed, parallel_config

    def run(tasks: Sequence[Task]) -> list[Any]:
        # one at a time: a cell takes long enough, and a batch would be lost whole
        return list(
            Parallel(batch_size=1, pre_dispatch="all")(delayed(f)(*args) for f, args in tasks)
        )

    if where.dask is not None:
        with _dask(where.dask) as client, parallel_config("dask", client=client, n_jobs=-1):
            yield run
    elif where.ray is not None:
        with _ray(where.ray), parallel_config("ray", n_jobs=-1):
            yield run
    else:
        with parallel_config("loky", n_jobs=where.jobs):
            yield run


def local(tasks: Sequence[Task], jobs: int = -1) -> list[Any]:
    """Results of tasks on local processes, in order."""
    with _engine(Where(jobs)) as run:
        return run(tasks)


@contextmanager
def _dask(address: str) -> Iterator[Any]:
    try:
        import distributed
    except ImportError as error:
        raise ClusterError("--dask needs a package: pip install 'lengthwise[dask]'") from error
    connect: Any = distributed.Client
    try:
        client = connect(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"--dask {address}: no scheduler answers ({_first_line(error)})"
        ) from error
    with client:
        yield client


@contextmanager
def _ray(address: str) -> Iterator[None]:
    try:
        import ray
        from ray.util import joblib as on_ray
    except ImportError as error:
        raise ClusterError("--ray needs a package: pip install 'lengthwise[ray]'") from error
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises bare ones
            raise ClusterError(f"--ray {address}: {_first_line(error)}") from error
    register: Any = on_ray.register_ray
    register()
    try:
        yield
    finally:
        if ours:
            ray.shutdown()


def _deaths(where: Where) -> tuple[type[BaseException], ...]:
    """What says that a worker died."""
    from concurrent.futures.process import BrokenProcessPool

    if where.dask is not None:
        from distributed import KilledWorker

        return (KilledWorker,)
    if where.ray is not None:
        from ray.exceptions import RayError

        return (RayError,)
    return (BrokenProcessPool,)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def _watching(store: Store, cells: Sequence[Cell], ended: Callable[[int], None]) -> Iterator[None]:
    """Tell `ended` a few times a second how many of the cells are in the store."""
    waiting = {cell.key for cell in cells}

    def look() -> None:
        waiting.difference_update([key for key in waiting if store.has(key)])
        ended(len(cells) - len(waiting))

    with ticking(look, PERIOD):
        yield
