"""Any bytes, in any format: a trace or an error with a message; never a traceback or a hang."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.traces.files import put
from tests.traces.samples import SAMPLES
from traces import Trace, TraceError, load
from traces import text_csv as csv_module
from traces.formats import BY_NAME, FORMATS

TOKENS = [
    *(b"nan", b"NaN", b"-Infinity", b"1e400", b"1e18", b"-1", b"0x1F", b"9" * 25, b"9" * 5000),
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b'"', b'""', b",", b"1,024", b" "),
    *(b"\n", b"\r", b"\r\n", b"\n\n", b"{", b"}", b"[", b"]", b"{}", b"[" * 300, b"null", b"true"),
    *(b"+", b":", b".", b"0"),
]


def read(path: Path, name: str | None, **options: Any) -> Trace | TraceError:
    """Read, or fail as promised; whatever comes out is whole."""
    try:
        trace = load(path, format=name, **options)
    except TraceError as error:
        return error
    assert len(trace) >= 1
    assert trace.arrival_s[0] == 0
    assert np.isfinite(trace.arrival_s).all()
    assert (np.diff(trace.arrival_s) >= 0).all()
    assert trace.prompt_tokens.min() >= 1
    assert trace.output_tokens.min() >= 0
    return trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = tmp_path_factory.mktemp("fuzz")
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(made / "tokenizer.json"))
    put(
        made,
        "chunk-1-dataset.json",
        '{"0": {"input_tokens": "{100: 0.25, 200: 0.75}", "output_tokens": "{5: 1.0}"}}',
    )
    return made


def attack(folder: Path, name: str, content: bytes) -> None:
    file = "chunk-1-trace.csv" if name == "servegen" else "fuzz"
    path = put(folder, file, content)
    known = name if name in BY_NAME else None
    common: dict[str, Any] = {"tokenizer": folder / "tokenizer.json", "limit": 500}
    read(path, None, **common)
    read(path, known, **common)
    read(path, known, on_bad_row="skip", bad_rows=folder / "bad.csv", **common)


def mutate(content: bytes, rng: random.Random) -> bytes:
    """One to six edits: tokens inserted, bytes changed, stretches deleted, doubled or moved."""
    for _ in range(rng.randint(1, 6)):
        at, to = sorted(rng.randint(0, len(content)) for _ in range(2))
        match rng.randint(0, 5):
            case 0:
                content = content[:at] + rng.choice(TOKENS) + content[at:]
            case 1:
                content = content[:at] + rng.choice(TOKENS) + content[at + rng.randint(1, 4) :]
            case 2:
                content = content[:at] + rng.randbytes(rng.randint(1, 4)) + content[at + 1 :]
            case 3:
                content = content[:at] + content[min(to, at + 30) :]
            case 4:
                content = content[:to] + content[at:to] + content[to:]
            case 5:
                content = content[: rng.randint(0, len(content))]
    return content


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_valid(folder: Path, name: str) -> None:
    file = "chunk-1-trace.csv" if name == "servegen" else "sample"
    trace = read(put(folder, file, SAMPLES[name]), None, tokenizer=folder / "tokenizer.json")
    assert isinstance(trace, Trace)
    assert any(f"read as {name.split('.')[0]}:" in note for note in trace.notes)


def test_every_format_is_attacked() -> None:
    assert {name.split(".")[0] for name in SAMPLES} == {f.name for f in FORMATS}


@pytest.mark.parametrize("name", SAMPLES)
def test_mutated_files(folder: Path, name: str) -> None:
    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32))
    def mutated(seed: int) -> None:
        attack(folder, name, mutate(SAMPLES[name], random.Random(seed)))

    mutated()


@pytest.mark.parametrize("name", [f.name for f in FORMATS])
def test_any_bytes(folder: Path, name: str) -> None:
    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.binary(max_size=200) | st.text(max_size=100).map(lambda t: t.encode("utf-8", "ignore"))
    )
    def any_bytes(content: bytes) -> None:
        attack(folder, name, content)

    any_bytes()


def test_memory_stays_bounded_while_files_are_broken(folder: Path) -> None:
    rng = random.Random(0)
    tracemalloc.start()
    try:
        for name, sample in SAMPLES.items():
            for _ in range(5):
                attack(folder, name, mutate(sample, rng))
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


CELLS = (
    *(
        "1",
        "0",
        "20",
        "-3",
        "1.0",
        "2.5",
        " 7 ",
        "+4",
        "007",
        "1e3",
        "1e18",
        "abc",
        "",
        "nan",
        "inf",
    ),
    *(
        "0x10",
        '"12"',
        '"1,024"',
        "1_000",
        "\x00",
        "-0",
        "99999999999",
        ".5",
        "5.",
        "1\r2",
        '"',
        "é",
    ),
)
cell = st.sampled_from(CELLS)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.lists(cell, min_size=2, max_size=4).map(",".join), min_size=1, max_size=4),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_arrow_and_line_by_line_read_the_same(
    folder: Path, rows: list[str], end: str, ended: bool
) -> None:
    text = "arrival_s,prompt_tokens,output_tokens" + end + end.join(rows) + end * ended
    path = put(folder, "both.csv", text)
    options: dict[str, Any] = {"on_bad_row": "skip", "bad_rows": folder / "bad.csv"}
    with pytest.MonkeyPatch.context() as patch:
        usual = read(path, "csv"), read(path, "csv", **options)
        patch.setattr(csv_module, "_fast", lambda *_: None)
        slow = read(path, "csv"), read(path, "csv", **options)
    for one, other in zip(usual, slow, strict=True):
        assert type(one) is type(other)
        if isinstance(one, Trace) and isinstance(other, Trace):
            assert one.arrival_s.tolist() == other.arrival_s.tolist()
            assert one.prompt_tokens.tolist() == other.prompt_tokens.tolist()
            assert one.output_tokens.tolist() == other.output_tokens.tolist()
            assert one.notes == other.notes
        else:
            assert str(one) == str(other)
