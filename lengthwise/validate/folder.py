"""A run measured elsewhere: a folder with `requests.csv` and `config.json`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lengthwise.validate.measured import Measured, MeasuredError, requests_table
from lengthwise.validate.settings import engine_settings
from traces.trace import BlockHashes, Trace

TIMES = ("ttft_s", "tpot_s", "e2e_s")
NEEDED = ("arrival_s", "prompt_tokens", "output_tokens", *TIMES)
PEER = "peer_llmservingsim.csv"


def read_folder(folder: Path) -> Measured:
    """Read the requests, the engine's settings and, where they lie beside, hashes and a peer.

    `prompt_blocksN.jsonl` holds `{"request", "hash_ids"}` a line: hashes of the prompt's blocks
    of N tokens. `peer_llmservingsim.csv` holds `request, peer_ttft_s, peer_tpot_s, peer_e2e_s`.

    Raises:
        MeasuredError: a file or column missing, a cell that is no number, settings of another
            engine.
    """
    path = folder / "requests.csv"
    table = _table(path, NEEDED)
    n = len(table)
    if not n:
        raise MeasuredError(f"{path}: no requests")
    if "request" not in table:
        table["request"] = np.arange(n)
    table = table.sort_values("arrival_s", kind="stable").reset_index(drop=True)
    settings, notes = _settings(folder / "config.json")
    ids = table["request"].to_numpy(np.int64)
    arrival = _numbers(table, "arrival_s", path)
    prompts, outputs = (
        _numbers(table, c, path).astype(np.int64) for c in ("prompt_tokens", "output_tokens")
    )
    trace = Trace(
        arrival - arrival[0], prompts, outputs, hashes=_hashes(folder, ids), name=folder.name
    )
    ttft, tpot, e2e = (_numbers(table, c, path, missing=True) for c in TIMES)
    return Measured(
        folder.name,
        trace,
        requests_table(trace, ttft, tpot, e2e),
        settings,
        peer=_peer(folder / PEER, ids),
        notes=tuple(notes),
    )


def _table(path: Path, needed: tuple[str, ...]) -> pd.DataFrame:
    try:
        table = pd.read_csv(path)
    except FileNotFoundError:
        raise MeasuredError(
            f"{path}: no such file; --measured takes a record's folder, or one with requests.csv "
            "and config.json"
        ) from None
    except (OSError, ValueError) as error:
        raise MeasuredError(f"{path}: not a readable table ({error})") from None
    lacks = [name for name in needed if name not in table]
    if lacks:
        raise MeasuredError(
            f"{path}: no column {', '.join(lacks)}; found {', '.join(map(str, table.columns))}"
        )
    return table


def _numbers(
    table: pd.DataFrame, name: str, path: Path, missing: bool = False
) -> NDArray[np.float64]:
    """A column of numbers of at least 0; with `missing` a cell may be empty."""
    values = pd.to_numeric(table[name], errors="coerce").to_numpy(np.float64)
    good = (values >= 0) & np.isfinite(values)
    if missing:
        good |= table[name].isna().to_numpy()
    if not good.all():
        at = int(np.argmin(good))
        raise MeasuredError(
            f"{path}: {name} of request {table['request'].iloc[at]} is "
            f"{table[name].iloc[at]}; expected a number of at least 0"
        )
    return values


def _settings(path: Path) -> tuple[dict[str, Any], list[str]]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MeasuredError(f"{path}: not a readable JSON file ({error})") from None
    if not isinstance(config, dict):
        raise MeasuredError(f"{path}: expected a JSON object")
    return engine_settings(config, str(path))


def _hashes(folder: Path, ids: NDArray[np.int64]) -> BlockHashes | None:
    """The prompts' block hashes in the order of `ids`, None where there is no such file."""
    path = next(iter(sorted(folder.glob("prompt_blocks*.jsonl"))), None)
    if path is None:
        return None
    size = re.fullmatch(r"prompt_blocks(\d+)\.jsonl", path.name)
    if size is None or int(size[1]) < 1:
        raise MeasuredError(f"{path}: name it prompt_blocksN.jsonl, N the tokens of a block")
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        rows = {int(line["request"]): np.array(line["hash_ids"], np.int64) for line in lines}
        parts = [rows[int(i)] for i in ids]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise MeasuredError(f"{path}: expected request and hash_ids a line ({error!r})") from None
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    return BlockHashes(np.concatenate(parts), offsets, int(size[1]))


def _peer(path: Path, ids: NDArray[np.int64]) -> pd.DataFrame | None:
    if not path.is_file():
        return None
    names = {f"peer_{name}": name for name in TIMES}
    table = _table(path, ("request", *names)).set_index("request")
    return table.reindex(ids)[list(names)].rename(columns=names).reset_index(drop=True)
