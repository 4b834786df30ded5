"""Small random checkpoints as transformers saves them, and its own answers on them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers

_SIZE = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 101,
    "max_position_embeddings": 512,
}

CONFIGS = {
    "llama": transformers.LlamaConfig(
        **_SIZE,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,  # so that 200 tokens are far beyond it
        },
    ),
    "mistral": transformers.MistralConfig(**_SIZE, head_dim=24, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**_SIZE, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**_SIZE, head_dim=32),
}


@lru_cache
def checkpoint(family: str) -> tuple[TemporaryDirectory, transformers.PreTrainedModel]:
    """A folder with a random model of a family, and that model; norms and biases random too."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[family]).eval()
    for weight in model.parameters():
        weight.data.normal_(mean=1.0 if weight.dim() == 1 else 0.0, std=0.2)
    for name, bias in model.named_parameters():
        if name.endswith("bias"):
            bias.data.sub_(1)
    folder = TemporaryDirectory()
    model.save_pretrained(folder.name, max_shard_size="200KB" if family == "qwen3" else "5GB")
    return folder, model


def folder(family: str) -> Path:
    return Path(checkpoint(family)[0].name)


TOKENS = 200


@lru_cache
def answer(family: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids, int32 [TOKENS], and transformers' logits for them."""
    ids = torch.randint(
        0, _SIZE["vocab_size"], (TOKENS,), generator=torch.Generator().manual_seed(3)
    )
    with torch.inference_mode():
        return ids.int(), checkpoint(family)[1](ids[None]).logits[0]
