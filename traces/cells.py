"""What one cell may hold: strict parsers of text and JSON values; nothing is guessed."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from traces.trouble import CellError

INT64_MAX = 2**63 - 1
NS = 1_000_000_000

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_GROUPED = re.compile(r"[+-]?\d{1,3}([,_'  ]\d{3})+(\.\d*)?", re.ASCII)
_STAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def number(text: str) -> float:
    """A finite decimal number."""
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        raise _not_a_number(text)
    value = float(text)
    if not math.isfinite(value):
        raise CellError("is too large for a number", "Give the value in the column's unit")
    return value


def count(text: str) -> int:
    """A whole number; `374.0` is one, `374.5` is not."""
    text = text.strip()
    if _WHOLE.fullmatch(text):
        return _fits(int(text))
    return whole(number(text))


def whole(value: float) -> int:
    """The whole number that a finite float is."""
    if not math.isfinite(value):
        raise CellError("is not a finite number", "Give a whole number")
    if value != int(value):
        raise CellError("is not a whole number", "Give a whole number")
    return _fits(int(value))


def stamp(text: str) -> tuple[int, bool]:
    """A date and time as nanoseconds since 1970, and whether it names its zone (else UTC)."""
    text = text.strip()
    match = _STAMP.fullmatch(text)
    fix = "Write it as 2023-11-16 18:15:46.6805900 or 2024-05-10 00:00:00.009930+00:00"
    if match is None:
        raise CellError("is empty" if not text else "is not a date and time", fix)
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, zone = match.groups()[6:]
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError as error:
        raise CellError("is not a date and time", fix) from error
    if not 1970 <= moment.year < 2262:
        raise CellError("is outside the years 1970 to 2261", fix)
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    if zone and zone != "Z":
        digits = zone[1:].replace(":", "")
        offset = int(digits[:2]) * 3600 + int(digits[2:]) * 60
        seconds -= offset if zone[0] == "+" else -offset
    return seconds * NS + int((fraction or "0").ljust(9, "0")), zone is not None


def ids(text: str) -> list[int]:
    """Hash ids separated by spaces; none in an empty cell."""
    parts = text.split()
    if not all(_WHOLE.fullmatch(part) for part in parts):
        raise CellError("is not a list of ids", "Write whole numbers with spaces between")
    return [_hash(int(part)) for part in parts]


def json_number(value: object) -> float:
    """A JSON number that is finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong_kind(value)
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise CellError("is not a finite number", "Give a number")
    return result


def json_count(value: object) -> int:
    """A JSON number that is whole."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _fits(value)
    return whole(json_number(value))


def json_ids(value: object) -> list[int]:
    """A JSON array of hash ids."""
    if not isinstance(value, list):
        raise CellError("is not a list", "Give a list of whole numbers")
    if not all(type(item) is int for item in value):
        raise CellError("is not a list of whole numbers", "Give whole numbers only")
    return [_hash(item) for item in value]


def clean(text: str) -> str:
    """Text without NUL and without halves of characters (lone surrogates)."""
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise CellError("is not clean UTF-8 text", "Mend the cell")
    return text


def json_text(value: object) -> str:
    """A JSON string that can be written as UTF-8, or a whole number taken as a name."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise CellError("is not text", 'Write it as "name"')


def _hash(value: int) -> int:
    """An id as 64 bits with a sign; unsigned hashes keep their bits, so equal ones stay equal."""
    return _fits(value - 2**64 if INT64_MAX < value < 2**64 else value)


def _fits(value: int) -> int:
    if abs(value) > INT64_MAX:
        raise CellError("is too large", "Give a number below 2^63")
    return value


def _not_a_number(text: str) -> CellError:
    if not text:
        return CellError("is empty", "Give a number")
    if _GROUPED.fullmatch(text):
        plain = re.sub(r"[^\d.+-]", "", text)
        return CellError("has thousands separators", f"Write {plain}")
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity", "null", "none", "na", "n/a"):
        return CellError("is not a finite number", "Give a number")
    return CellError("is not a number", "Give a number")


def _wrong_kind(value: object) -> CellError:
    if isinstance(value, str):
        return CellError("is text where a number belongs", "Write it without quotes")
    if value is None:
        return CellError("is not a number", "Give a number")
    return CellError("is not a number", "Give a number")
