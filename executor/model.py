"""A Llama-family decoder in plain PyTorch: one flat batch of tokens in, logits out.

The model does not know how its tokens are laid out. Padded or packed, prefill or decode, it sees
`[tokens]`; what a token attends to is the business of the `Attend` it is called with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sim.models import Model, ModelError

DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
"""Torch's dtypes by the names of the command line."""

_FEW_ROWS = 8
"""Rows up to which a CPU is quicker with the LM head on the left (twice as quick, for 2 to 8)."""


class Attend(Protocol):
    """Attention of one step: stores the step's keys and values, and attends over all of them."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend in `layer`.

        Shapes: q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim], already
        rotated; the result is [tokens, heads, head_dim].
        """


# Elementwise work between the matrix products --------------------------------------------------


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension (Zhang and Sennrich, 2019)."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`x + residual`, normed and as it is, both [tokens, hidden]."""
    residual = x + residual
    return rms_norm(residual, weight, eps), residual


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al., 2021): each head's first half pairs with its second half.

    Shapes: x [tokens, heads, head_dim], cos and sin [tokens, 1, head_dim / 2].
    """
    a, b = x.chunk(2, dim=-1)
    return torch.cat(((a * cos).addcmul(b, sin, value=-1), (b * cos).addcmul(a, sin)), dim=-1)


def swiglu(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` (Shazeer, 2020), [tokens, 2 * n] to [tokens, n]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class Elementwise(NamedTuple):
    """The functions between the matrix products, plain or fused."""

    norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    add_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] = add_norm
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor] = rotate
    swiglu: Callable[[Tensor], Tensor] = swiglu


def fused(compiler: str = "inductor") -> Elementwise:
    """The same functions through `torch.compile`: one kernel each, for any number of tokens."""

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, dynamic=True, backend=compiler)

    return Elementwise(compiled(rms_norm), compiled(add_norm), compiled(rotate), compiled(swiglu))


# Rotary frequencies ----------------------------------------------------------------------------


def rotary_frequencies(shape: Model) -> Tensor:
    """Radians per position of each pair of a head, float32 [head_dim / 2].

    Raises:
        ModelError: a kind of scaling that is not understood.
    """
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    plain = 1.0 / shape.rope_theta**exponent
    scaling = shape.rope_scaling
    if scaling is None:
        return plain
    kind = scaling["rope_type"]
    if kind == "linear":
        return plain / float(scaling["factor"])
    if kind == "llama3":
        return _llama3(plain, scaling)
    raise ModelError(
        f"{shape.source or shape.name}: rope_type {kind!r} is not understood; "
        "understood are 'default', 'linear' and 'llama3'"
    )


def _llama3(plain: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Llama 3.1's scaling: long waves are stretched, short ones kept, those between blended."""
    factor, low = float(scaling["factor"]), float(scaling["low_freq_factor"])
    high, trained = float(scaling["high_freq_factor"]), scaling["original_max_position_embeddings"]
    turns = float(trained) * plain / (2 * math.pi)  # over the context that was trained on
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * (keep + (1 - keep) / factor)


# The decoder -----------------------------------------------------------------------------------


class Layer(nn.Module):
    """One pre-norm block: attention, then a gated MLP, each added to the residual."""

    def __init__(self, shape: Model, ops: Elementwise) -> None:
        super().__init__()
        self.shape, self.ops = shape, ops
        heads, both = shape.heads, shape.heads + 2 * shape.kv_heads
        self.attention_norm = _ones(shape.hidden)
        self.qkv = nn.Linear(shape.hidden, both * shape.head_dim, bias=shape.qkv_bias)
        # one weight a head, so that q and k are normed and rotated in one go
        self.qk_norm = _ones(heads + shape.kv_heads, shape.head_dim) if shape.qk_norm else None
        self.o = nn.Linear(heads * shape.head_dim, shape.hidden, bias=shape.o_bias)
        self.mlp_norm = _ones(shape.hidden)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(
        self,
        index: int,
        x: Tensor,
        residual: Tensor | None,
        rotary: tuple[Tensor, Tensor],
        attend: Attend,
    ) -> tuple[Tensor, Tensor]:
        """What the block adds, and the residual to add it to, both [tokens, hidden]."""
        shape, ops, eps = self.shape, self.ops, self.shape.rms_norm_eps
        if residual is None:
            x, residual = ops.norm(x, self.attention_norm, eps), x
        else:
            x, residual = ops.add_norm(x, residual, self.attention_norm, eps)
        rows = shape.heads + shape.kv_heads
        qkv = self.qkv(x).view(-1, rows + shape.kv_heads, shape.head_dim)
        qk, v = qkv[:, :rows], qkv[:, rows:]
        if self.qk_norm is not None:
            qk = F.rms_norm(qk, (shape.head_dim,), None, eps) * self.qk_norm
        qk = ops.rotate(qk, *rotary)
        out = attend(index, qk[:, : shape.heads], qk[:, shape.heads :], v)
        x, residual = ops.add_norm(self.o(out.flatten(1)), residual, self.mlp_norm, eps)
        return self.down(ops.swiglu(self.gate_up(x))), residual


class Transformer(nn.Module):
    """A decoder of the Llama family: Llama 2 and 3, Mistral, Qwen2, Qwen3.

    Its weights are memory that nobody has written yet: `weights.load` or `weights.randomise`
    fills them.
    """

    def __init__(
        self,
        shape: Model,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        ops: Elementwise | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.ops = shape, ops or Elementwise()
        with torch.device("meta"):
            self.embedding = nn.Parameter(torch.empty(shape.vocab, shape.hidden))
            self.layers = nn.ModuleList(Layer(shape, self.ops) for _ in range(shape.layers))
            self.norm = _ones(shape.hidden)
            self.head = (
                None
                if shape.tied_embeddings
                else nn.Parameter(torch.empty(shape.vocab, shape.hidden))
            )
        self.to(dtype).to_empty(device=device).requires_grad_(False)
        self.frequencies = rotary_frequencies(shape).to(device)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights and activations."""
        return self.embedding.dtype

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each token's angles, both [tokens, 1, head_dim / 2]."""
        angles = positions[:, None, None].float() * self.frequencies
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, rows: Tensor) -> Tensor:
        """Logits of the tokens at `rows`, [rows, vocab].

        Args:
            tokens: ids, int [tokens]; every one of them is computed.
            positions: each token's place in its own sequence, int [tokens].
            attend: attention as this step is laid out.
            rows: which of the tokens get logits, int [rows]; none where it is empty.
        """
        x = F.embedding(tokens, self.embedding)
        residual, rotary = None, self.rotary(positions)
        for index, layer in enumerate(self.layers):
            x, residual = layer(index, x, residual, rotary, attend)
        # only these rows go on: the LM head is as wide as the vocabulary
        x = x.index_select(0, rows)
        if residual is not None:
            x = x + residual.index_select(0, rows)
        x = self.ops.norm(x, self.norm, self.shape.rms_norm_eps)
        return _logits(x, self.embedding if self.head is None else self.head)


def _logits(x: Tensor, head: Tensor) -> Tensor:
    """`x` times the LM head: [rows, hidden] and [vocab, hidden] to [rows, vocab]."""
    if x.device.type == "cpu" and x.shape[0] <= _FEW_ROWS:
        # a matrix product repacks its right side first: let that be the rows, not the vocabulary
        return torch.mm(head, x.t()).t()
    return F.linear(x, head)


def _ones(*size: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(*size))
