"""Records by key, in a folder: each appears whole or not at all, and is never written twice."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.folder import FolderError, new_folder


@dataclass(frozen=True)
class Store:
    """A folder of records, `KEY/` each."""

    root: Path

    def has(self, key: str) -> bool:
        """Whether the record is there."""
        return (self.root / key / "summary.json").is_file()

    def new(self, key: str) -> AbstractContextManager[Path]:
        """A folder to write a record into (see `serving.folder.new_folder`)."""
        return new_folder(self.root / key)

    def summary(self, key: str) -> dict[str, Any]:
        """The figures of a record that is there.

        Raises:
            FolderError: the file is damaged.
        """
        path = self.root / key / "summary.json"
        try:
            summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FolderError(
                f"{path}: {error}. Remove {path.parent}, and it is run again"
            ) from error
        return summary
