"""What a model is made of: one table of shapes that sim/ prices and executor/ builds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

DTYPE_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of one number, by the dtype names of the command line."""

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""The `model_type`s that are understood: pre-norm decoders with rotary positions and SwiGLU."""


class ModelError(ValueError):
    """A model that is not known, not readable, or not of the Llama family."""


@dataclass(frozen=True)
class Model:
    """The shape of a Llama-family decoder, as its `config.json` gives it."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    """Longest prompt + output that it attends over exactly, tokens."""
    family: str = "llama"
    tied_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] | None = None
    """The Hugging Face dict, with `rope_type`; None for plain rotary positions."""
    sliding_window: int | None = None
    """Where a layer attends over a window only; `max_positions` then ends with the window."""
    source: str = ""

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding (and, apart, of an untied LM head)."""
        return self.vocab * self.hidden

    @property
    def layer_linear_parameters(self) -> int:
        """Weights of one layer's matrix products: q, k, v, o, gate, up, down."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.hidden * (2 * q + 2 * kv) + 3 * self.hidden * self.intermediate

    @property
    def layer_other_parameters(self) -> int:
        """Norms and biases of one layer."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return norms + (q + 2 * kv if self.qkv_bias else 0) + (self.hidden if self.o_bias else 0)

    def parameters(self) -> int:
        """All parameters, a tied LM head counted once."""
        embeddings = self.embedding_parameters * (1 if self.tied_embeddings else 2)
        layer = self.layer_linear_parameters + self.layer_other_parameters
        return embeddings + self.layers * layer + self.hidden

    def weight_bytes(self, dtype: str = "bf16", tp: int = 1) -> int:
        """Bytes of weights on one of `tp` GPUs.

        Matrix products and embeddings are split, norms and biases are not. Under fp8 the layers'
        matrices are quantised; embeddings, LM head and norms stay 16 bit, as vLLM loads them.

        Raises:
            ModelError: an unknown dtype, or heads that `tp` does not divide.
        """
        size = dtype_bytes(dtype)
        self.check_tp(tp)
        other = max(size, 2)
        embeddings = self.embedding_parameters * (1 if self.tied_embeddings else 2)
        kv = 2 * self.hidden * self.kv_heads * self.head_dim
        # K and V projections are copied where there are more GPUs than KV heads
        linear = (self.layer_linear_parameters - kv) // tp
        linear += kv * self.kv_heads_per_gpu(tp) // self.kv_heads
        small = self.layers * self.layer_other_parameters + self.hidden
        return linear * self.layers * size + -(-embeddings // tp) * other + small * other

    def kv_heads_per_gpu(self, tp: int = 1) -> int:
        """KV heads that each GPU keeps (copies, where there are fewer heads than GPUs)."""
        return max(1, self.kv_heads // tp)

    def kv_bytes_per_token(self, dtype: str = "bf16", tp: int = 1) -> int:
        """Bytes of K and V of one token over all layers, on one of `tp` GPUs."""
        per_head = 2 * self.layers * self.head_dim * dtype_bytes(dtype)
        return per_head * self.kv_heads_per_gpu(tp)

    def check_tp(self, tp: int) -> None:
        """Whether the heads can be split over `tp` GPUs.

        Raises:
            ModelError: they cannot.
        """
        if tp < 1:
            raise ModelError(f"--tp must be at least 1, not {tp}")
        if self.heads % tp or (self.kv_heads % tp and tp % self.kv_heads):
            raise ModelError(
                f"--tp {tp} does not divide {self.name}'s {self.heads} heads "
                f"({self.kv_heads} KV heads): take a divisor of both"
            )


def dtype_bytes(dtype: str) -> int:
    """Bytes of one number of `dtype`.

    Raises:
        ModelError: an unknown dtype.
    """
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"dtype {dtype!r} is not one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


_LLAMA31_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

_BUILT_IN = (
    Model(
        "llama-3.1-8b", 4096, 32, 32, 8, 128, 14336, 128256, 131072,
        rope_theta=500_000.0, rope_scaling=_LLAMA31_ROPE,
        source="meta-llama/Llama-3.1-8B config.json",
    ),
    Model(
        "llama-3.1-70b", 8192, 80, 64, 8, 128, 28672, 128256, 131072,
        rope_theta=500_000.0, rope_scaling=_LLAMA31_ROPE,
        source="meta-llama/Llama-3.1-70B config.json",
    ),
    Model(
        "qwen2.5-7b", 3584, 28, 28, 4, 128, 18944, 152064, 32768,
        family="qwen2", qkv_bias=True, rms_norm_eps=1e-6, rope_theta=1_000_000.0,
        source="Qwen/Qwen2.5-7B-Instruct config.json",
    ),
    Model(
        "qwen2.5-72b", 8192, 80, 64, 8, 128, 29568, 152064, 32768,
        family="qwen2", qkv_bias=True, rms_norm_eps=1e-6, rope_theta=1_000_000.0,
        source="Qwen/Qwen2.5-72B-Instruct config.json",
    ),
    Model(
        "qwen3-8b", 4096, 36, 32, 8, 128, 12288, 151936, 40960,
        family="qwen3", qk_norm=True, rms_norm_eps=1e-6, rope_theta=1_000_000.0,
        source="Qwen/Qwen3-8B config.json",
    ),
    Model(
        "qwen3-32b", 5120, 64, 64, 8, 128, 25600, 151936, 40960,
        family="qwen3", qk_norm=True, rms_norm_eps=1e-6, rope_theta=1_000_000.0,
        source="Qwen/Qwen3-32B config.json",
    ),
    Model(
        "mistral-7b", 4096, 32, 32, 8, 128, 14336, 32768, 32768,
        family="mistral", rope_theta=1_000_000.0,
        source="mistralai/Mistral-7B-v0.3 config.json",
    ),
    # Two of our own, of the same build, that a CPU runs in milliseconds a step.
    Model(
        "tiny", 256, 8, 8, 4, 32, 768, 32000, 2048, tied_embeddings=True,
        source="lengthwise: about 15 million parameters",
    ),
    Model(
        "small", 768, 12, 12, 4, 64, 2048, 32000, 8192, tied_embeddings=True,
        source="lengthwise: about 100 million parameters",
    ),
)  # fmt: skip

MODELS: dict[str, Model] = {m.name: m for m in _BUILT_IN}
"""The built-in models by name."""


def load_model(name_or_path: str | Path) -> Model:
    """A built-in model by name, or the model of a Hugging Face folder or `config.json`.

    Raises:
        ModelError: an unknown name, an unreadable file, or a model of another build.
    """
    text = str(name_or_path)
    if text.lower() in MODELS:
        return MODELS[text.lower()]
    path = Path(text)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return read_config(path)
    near = get_close_matches(text.lower().rsplit("/", 1)[-1], MODELS, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ModelError(
        f"--model {text}: no such model, folder or config.json; {hint}"
        f"built in are {', '.join(MODELS)}"
    )


def read_config(path: Path) -> Model:
    """The model that a Hugging Face `config.json` describes.

    A sliding window shortens `max_positions` to the window, up to which attention is the same.

    Raises:
        ModelError: unreadable, a field missing or out of range, or not of the Llama family.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not a readable JSON file ({error})") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise ModelError(f"{path}: model_type is {family!r}; understood are {', '.join(FAMILIES)}")
    for key, only in (("hidden_act", "silu"), ("mlp_bias", False)):
        if raw.get(key, only) != only:
            raise ModelError(f"{path}: {key} is {raw[key]!r}; only {only!r} is understood")

    def whole(key: str, default: int | None = None) -> int:
        value = raw.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"{path}: {key} must be a whole number of at least 1, not {value!r}")
        return value

    def real(where: Mapping[str, Any], key: str, default: float) -> float:
        value = where.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise ModelError(f"{path}: {key} must be a positive number, not {value!r}")
        return float(value)

    hidden, heads = whole("hidden_size"), whole("num_attention_heads")
    kv_heads = whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"{path}: {heads} heads cannot share {kv_heads} KV heads evenly")
    positions = whole("max_position_embeddings")
    window = _window(raw, family)
    # transformers 5 writes theta and scaling into one dict
    rope = raw.get("rope_parameters") or {}
    scaling = _scaling(raw.get("rope_scaling") or rope)
    bias = bool(raw.get("attention_bias", False))
    folder = path.resolve().parent.name
    return Model(
        name=str(raw.get("_name_or_path") or folder),
        hidden=hidden,
        layers=whole("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=whole("head_dim", hidden // heads),
        intermediate=whole("intermediate_size"),
        vocab=whole("vocab_size"),
        max_positions=positions if window is None else min(positions, window),
        family=family,
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or bias,
        o_bias=family != "qwen2" and bias,
        qk_norm=family == "qwen3",
        rms_norm_eps=real(raw, "rms_norm_eps", 1e-6),
        rope_theta=real(rope if "rope_theta" in rope else raw, "rope_theta", 10_000.0),
        rope_scaling=scaling,
        sliding_window=window,
        source=str(path),
    )


def _window(raw: Mapping[str, Any], family: str) -> int | None:
    """The attention window of a config, None where every layer attends over everything."""
    if family.startswith("qwen") and not raw.get("use_sliding_window", False):
        return None
    window = raw.get("sliding_window") if family != "llama" else None
    return None if window is None else int(window)


def _scaling(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A rope scaling dict with `rope_type`, None where it scales nothing."""
    kind = raw.get("rope_type", raw.get("type", "default"))
    if kind == "default":
        return None
    kept = {k: v for k, v in raw.items() if k not in ("type", "rope_theta")}
    return {**kept, "rope_type": kind}
