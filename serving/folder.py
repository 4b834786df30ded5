"""Folders and files of results: whole or not there at all, and never over another unasked."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "summary.json"
"""The file by which a folder is known as one of ours, so that only such a folder is replaced."""

_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}


class FolderError(Exception):
    """A result folder that cannot be written or read, said so that a user can act on it."""


class RecordExists(FolderError):  # noqa: N818 - it says what is the case
    """The folder is there already and was not to be replaced."""


def ensure_free(folder: Path | str, force: bool = False) -> None:
    """Check before a long run that its folder can be written at the end.

    Raises:
        RecordExists: it is there already and `force` was not given.
        FolderError: `force` was given but the folder does not look like one of ours.
    """
    target = Path(os.path.realpath(folder))
    if not os.path.lexists(target):
        return
    if not force:
        raise RecordExists(f"{folder} exists already; choose another --out or add --force")
    if not target.is_dir() or (any(target.iterdir()) and not (target / MARK).is_file()):
        raise FolderError(
            f"{folder} is not a folder of results (it has no {MARK}), so --force does not replace "
            "it; choose another --out or remove it yourself"
        )


@contextmanager
def new_folder(folder: Path | str, force: bool = False) -> Iterator[Path]:
    """Give a temporary folder to write into, which becomes `folder` when the block ends.

    Until then it is a hidden sibling, `.NAME.tmp-…`; it is removed if the block raises, and a
    killed process leaves nothing else behind. Of two writers of one folder the first to end wins.

    Args:
        folder: the result; missing parents are made.
        force: replace an earlier result.

    Raises:
        RecordExists, FolderError: as `ensure_free`, and what the file system refuses.
    """
    ensure_free(folder, force)
    target = Path(os.path.realpath(folder))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.tmp-", dir=target.parent))
    except OSError as error:
        raise FolderError(f"cannot write {folder}: {error.strerror}") from error
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        _place(temporary, target, force)
    except OSError as error:
        if _elsewhere(error, temporary, target):
            raise
        raise FolderError(f"cannot write {folder}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _elsewhere(error: OSError, *places: Path) -> bool:
    """Whether it is about a file outside these: one that a user's policy could not open."""
    named = error.filename
    if not isinstance(named, str | os.PathLike):
        return False
    path = Path(named).absolute()
    return not any(path.is_relative_to(place) for place in places)


@contextmanager
def new_file(path: Path | str, force: bool = False) -> Iterator[Path]:
    """Give a temporary file name to write to, which becomes `path` when the block ends.

    Args:
        path: the result; missing parents are made.
        force: replace an earlier file.

    Raises:
        RecordExists: it is there already and `force` was not given.
        FolderError: what the file system refuses.
    """
    target = Path(os.path.realpath(path))
    if os.path.lexists(target) and not force:
        raise RecordExists(f"{path} exists already; choose another --out or add --force")
    temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(target)
    except OSError as error:
        raise FolderError(f"cannot write {path}: {error}") from error
    finally:
        if temporary.exists():
            temporary.unlink()


def _place(temporary: Path, target: Path, force: bool) -> None:
    """Rename `temporary` to `target`; with `force` an earlier result is moved out of the way."""
    while True:
        try:
            # An empty folder would be replaced by rename, so look first.
            if os.path.lexists(target):
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
            temporary.rename(target)
            return
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        ensure_free(target, force)
        _set_aside(target)


def _set_aside(target: Path) -> None:
    """Remove an earlier result; another writer may have done so already."""
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.tmp-", dir=target.parent))
    try:
        target.rename(aside / target.name)
    except FileNotFoundError:
        pass
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _umask() -> int:
    """The process's file mode mask, which cannot be read without setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
