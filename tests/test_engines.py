"""`--like vllm`: vLLM's defaults, in the table, in the docs and in what runs."""

from __future__ import annotations

import pytest

from lengthwise.api import replay
from lengthwise.engines import GIB, VLLM, VLLM_VERSION, vllm_sizes
from policies.compose import PolicyChoiceError
from tests.shared import ROOT


def test_the_page_has_every_flag() -> None:
    page = (ROOT / "docs" / "engines.md").read_text()
    assert VLLM_VERSION in page
    for flag in VLLM:
        assert f"| `{flag.engine_flag}` | `--{flag.knob.replace('_', '-')}` |" in page


@pytest.mark.parametrize(
    ("gib", "name", "sizes"),
    [
        (180, "B200", (16384, 1024)),
        (80, "H100", (8192, 1024)),
        (80, "A100-80G", (2048, 256)),
        (48, "L40S", (2048, 256)),
    ],
)
def test_sizes_go_by_memory(gib: int, name: str, sizes: tuple[int, int]) -> None:
    assert vllm_sizes(gib * GIB, name) == sizes


def test_defaults_give_way_to_flags() -> None:
    config = replay("chat", limit=5, like="vllm", max_num_seqs=7, hardware="h100").config
    assert config["max_num_seqs"] == 7
    assert config["max_num_batched_tokens"] == 8192
    assert config["run"]["async_scheduling"] is True
    assert config["max_model_len"] == 131072


def test_without_chunks_the_budget_grows_to_the_limit() -> None:
    config = replay("chat", limit=5, like="vllm", enable_chunked_prefill=False).config
    assert config["lifecycle"] == "continuous"
    assert config["max_num_batched_tokens"] == config["max_model_len"]


def test_cuda_graphs_pad_decodes_and_say_so() -> None:
    plain = replay("chat", limit=40)
    padded = replay("chat", limit=40, cuda_graphs=True)
    assert plain.summary["decode_padding_ratio"] == 0
    assert padded.summary["decode_padding_ratio"] > 0
    decodes = padded.steps[padded.steps.prefill_rows == 0]
    assert set(decodes.decode_slots) <= {1, 2, 4, *range(8, 257, 8)}


def test_an_unknown_engine_is_named() -> None:
    with pytest.raises(PolicyChoiceError, match="--like vlm: unknown; did you mean vllm"):
        replay("chat", limit=5, like="vlm")
