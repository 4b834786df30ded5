"""A trace file as bytes: opened, decompressed within bounds, and cut into blocks of whole lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traces.errors import TraceError

BLOCK = 8 << 20
"""Bytes read at a time."""
HEAD = 1 << 20
"""Bytes that choosing a format looks at."""
MAX_LINE = 16 << 20
"""Longest line that is read, bytes; a million hash ids take half of it."""
FREE = 64 << 20
"""Bytes that any compressed file may expand to."""
MAX_RATIO = 200
"""How many times its own size a larger one may expand to; real traces stay under about 20."""
MAX_RATIO_WHOLE = 30
"""The same for a document held in memory whole, where each byte costs many."""

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Source:
    """One readable file; `compression` is known from its first bytes, not from its name."""

    path: Path
    size: int
    compression: str | None

    @property
    def name(self) -> str:
        """The file's name as messages give it."""
        return str(self.path)

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Source:
        """The file at `path`, or the folder: what is in it is for its reader to open.

        Raises:
            TraceError: not a file, empty, or not readable.
        """
        path = Path(path)
        try:
            if path.is_dir():
                return cls(path, 0, None)
            if not path.is_file():
                raise TraceError(f"{path}: not a file. Give the path of a trace file.")
            with path.open("rb") as file:
                first = file.read(4)
            size = path.stat().st_size
        except (OSError, ValueError) as error:
            if isinstance(error, TraceError):
                raise
            raise TraceError(f"{path}: cannot be read ({error}).") from error
        if not first:
            raise TraceError(f"{path}: the file is empty. A trace needs at least one request.")
        kind = next((k for magic, k in _MAGIC.items() if first.startswith(magic)), None)
        return cls(path, size, kind)

    def head(self) -> bytes:
        """The first bytes, decompressed, without a byte order mark."""
        for block in self._raw(HEAD):
            return block
        raise TraceError(
            f"{self.name}: the file holds no data. A trace needs at least one request."
        )

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Blocks of whole lines, each with the number of its first line (1-based).

        Raises:
            TraceError: a damaged file, a bomb, or a line over `MAX_LINE`.
        """
        line, rest = 1, b""
        for block in self._raw(BLOCK):
            cut = block.rfind(b"\n") + 1
            if cut:
                whole = rest + block[:cut]
                yield line, whole
                line += whole.count(b"\n")
                rest = block[cut:]
            else:
                rest += block
            if len(rest) > MAX_LINE:
                raise TraceError(
                    f"{self.name}, line {line}: longer than {MAX_LINE >> 20} MiB. "
                    "Check that this is a trace with one request a line.",
                    file=self.name,
                    line=line,
                )
        if rest:
            yield line, rest

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Lines with their numbers, without line ends; blank lines are left out."""
        for first, block in self.blocks():
            for number, line in enumerate(block.split(b"\n"), first):
                line = line.strip(b" \t\r")
                if line:
                    yield number, line

    def whole(self, most: int) -> bytes:
        """The whole content, for documents that cannot be read in pieces.

        Raises:
            TraceError: over `most` bytes.
        """
        parts, size = [], 0
        for block in self._raw(BLOCK, MAX_RATIO_WHOLE):
            size += len(block)
            if size > most:
                raise TraceError(
                    f"{self.name}: more than {most >> 20} MiB of JSON in one document. "
                    "Convert it to one request a line (JSONL)."
                )
            parts.append(block)
        return b"".join(parts)

    def _raw(self, block: int, ratio: int = MAX_RATIO) -> Iterator[bytes]:
        """Decompressed bytes, `block` at a time, bounded against bombs, without a BOM."""
        import pyarrow as pa

        most = max(FREE, ratio * self.size)
        seen = 0
        try:
            with self._open(pa) as stream:
                while data := stream.read(block):
                    if not seen:
                        self._check_encoding(data)
                        data = data.removeprefix(_BOM)
                    seen += len(data)
                    if self.compression and seen > most:
                        raise TraceError(
                            f"{self.name}: {self.size:,} bytes that decompress to more than "
                            f"{most:,}; refused as a decompression bomb. If it is a real trace, "
                            "decompress it first."
                        )
                    if data:
                        yield data
        except OSError as error:
            raise TraceError(
                f"{self.name}: damaged or cut short ({error}). Fetch or compress it again."
            ) from error

    def _open(self, pa: Any) -> Any:
        file = pa.OSFile(os.fspath(self.path), "rb")
        return pa.CompressedInputStream(file, self.compression) if self.compression else file

    def _check_encoding(self, data: bytes) -> None:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise TraceError(f"{self.name}: UTF-16 text. Save it as UTF-8.")
