"""Files of text, for which a local tokenizer counts: vLLM's custom JSONL and ShareGPT JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from traces.cells import json_text
from traces.documents import MAX_DOCUMENT
from traces.errors import TraceError
from traces.layout import Chunk, Layout, Options
from traces.source import Source
from traces.text_jsonl import Record, get, objects, parse_document, read_records
from traces.trouble import CellError, Trouble

Count = Callable[[str], int]

MIN_TOKENS, MAX_PROMPT, MAX_TOTAL = 4, 1024, 2048
"""What vLLM's ShareGPT dataset keeps (`is_valid_sequence`): prompt and answer of at least 4 tokens,
prompt of at most 1,024, both together of at most 2,048."""


def read_vllm_custom(
    source: Source, layout: Layout, trouble: Trouble, options: Options
) -> Iterator[Chunk]:
    """`prompt` and `output_tokens` of each line, as vLLM's custom dataset has them.

    The chat template is not applied, and all requests arrive at once: the file has no times.

    Raises:
        TraceError: no tokenizer, or a line without prompt or output length.
    """
    count = tokenizer(source, options)
    yield from read_records(_custom(source, trouble, options, count), layout, trouble)


def _custom(
    source: Source, trouble: Trouble, options: Options, count: Count
) -> Iterator[tuple[int, Record]]:
    for line, record in objects(source, trouble):
        try:
            prompt = json_text(get(record, "prompt"))
        except CellError as bad:
            fix = 'Write {"prompt": "text", "output_tokens": 128} on each line'
            trouble.bad(line, "prompt", get(record, "prompt"), bad.problem, fix)
            continue
        output = record.get("output_tokens", options.output_tokens)
        if output is None:
            fix = "Add output_tokens, or give a length for all with --output-tokens"
            trouble.bad(line, "output_tokens", "nothing", "is there", fix)
            continue
        yield line, {"arrival": 0, "prompt": count(prompt), "output_tokens": output}


def read_sharegpt(
    source: Source, layout: Layout, trouble: Trouble, options: Options
) -> Iterator[Chunk]:
    """The first two turns of each conversation, kept and left out as vLLM does.

    All requests arrive at once: the file has no times.

    Raises:
        TraceError: no tokenizer, or not a list of conversations.
    """
    trouble.unit = "conversation"
    count = tokenizer(source, options)
    document = parse_document(source, MAX_DOCUMENT)
    if not isinstance(document, list):
        raise TraceError(f"{source.name}: not a list of conversations. Give a ShareGPT JSON file.")
    yield from read_records(_sharegpt(document, trouble, count, options), layout, trouble)


def _sharegpt(
    document: list[Any], trouble: Trouble, count: Count, options: Options
) -> Iterator[tuple[int, Record]]:
    for number, entry in enumerate(document, 1):
        turns = entry.get("conversations") if isinstance(entry, dict) else None
        if not isinstance(turns, list) or len(turns) < 2:
            trouble.left_out("fewer than two turns, as vLLM does")
            continue
        try:
            texts = [json_text(turn.get("value")) for turn in turns[:2]]
        except (CellError, AttributeError):
            fix = 'Write each turn as {"from": "human", "value": "text"}'
            trouble.bad(number, "conversations", turns[:2], "has a turn without clean text", fix)
            continue
        prompt, answer = (count(text) for text in texts)
        given = options.output_tokens
        output = answer if given is None else given
        if prompt < MIN_TOKENS or (given is None and output < MIN_TOKENS):
            trouble.left_out(f"prompt or answer below {MIN_TOKENS} tokens, as vLLM does")
        elif prompt > MAX_PROMPT or prompt + output > MAX_TOTAL:
            trouble.left_out(
                f"prompt over {MAX_PROMPT:,} or both over {MAX_TOTAL:,} tokens, as vLLM does"
            )
        else:
            yield number, {"arrival": 0, "prompt": prompt, "output_tokens": output}


def tokenizer(source: Source, options: Options) -> Count:
    """A function that counts a text's tokens, special tokens included.

    Raises:
        TraceError: none was given, it cannot be loaded, or the library is not installed.
    """
    path = options.tokenizer
    if path is None:
        raise TraceError(
            f"{source.name}: the file holds text, not lengths. "
            "Name a local tokenizer file with --tokenizer path/to/tokenizer.json."
        )
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise TraceError(
            "--tokenizer needs the package tokenizers. Install it with: pip install tokenizers"
        ) from error
    # The library raises bare Exception from Rust, so the file is checked before it is handed over.
    definition = parse_document(Source.at(path), MAX_DOCUMENT)
    if not isinstance(definition, dict) or "model" not in definition:
        raise TraceError(f"{path}: not a tokenizer. Give a Hugging Face tokenizer.json.")
    loaded = Tokenizer.from_file(str(path))
    return lambda text: len(loaded.encode(text).ids)
