"""Weights from a Hugging Face folder (safetensors only), or random ones from a seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from executor.model import Layer, Transformer
from sim.models import ModelError


def randomise(model: Transformer, seed: int = 0) -> Transformer:
    """Fill a model with reproducible noise: enough to time it, and to compare its outputs.

    Matrices are normal with the standard deviation 0.02 that these families train from, norms
    are one and biases zero. Equal seeds give equal weights on one kind of device and dtype.
    """
    generator = torch.Generator(model.device).manual_seed(seed)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.fill_(1)
        elif name.endswith("bias"):
            weight.data.zero_()
        else:
            weight.data.normal_(std=0.02, generator=generator)
    return model


def load(model: Transformer, folder: Path) -> Transformer:
    """Fill a model from `model.safetensors`, or from the shards that its index names.

    Raises:
        ModelError: no safetensors file, an unreadable one, a weight missing or of another shape.
    """
    targets = _targets(model)
    missing = set(targets)
    for file in _files(folder):
        try:
            with safe_open(file, framework="pt", device=str(model.device)) as tensors:
                for name in missing.intersection(tensors.keys()):
                    _copy(file, name, tensors.get_tensor(name), targets[name])
                    missing.discard(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file}: not a readable safetensors file ({error})") from None
    if missing:
        raise ModelError(
            f"{folder}: {len(missing)} weights of {model.shape.name} are in none of its "
            f"safetensors files, the first of them {min(missing)}"
        )
    return model


def _files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        try:
            shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            return [folder / name for name in sorted(set(shards))]
        except (ValueError, KeyError, AttributeError) as error:
            raise ModelError(f"{index}: not an index of safetensors files ({error})") from None
    if single.is_file():
        return [single]
    pickled = sorted(p.name for p in folder.glob("*.bin"))
    hint = f"; {pickled[0]} is a pickle, which is never read: convert it" if pickled else ""
    raise ModelError(f"{folder}: found no model.safetensors and no index of shards{hint}")


def _targets(model: Transformer) -> dict[str, Tensor]:
    """Where each weight of a Hugging Face checkpoint goes, by its name there."""
    shape = model.shape
    targets: dict[str, Tensor] = {
        "model.embed_tokens.weight": model.embedding,
        "model.norm.weight": model.norm,
    }
    if model.head is not None:
        targets["lm_head.weight"] = model.head
    widths = [n * shape.head_dim for n in (shape.heads, shape.kv_heads, shape.kv_heads)]
    for i, module in enumerate(model.layers):
        layer = cast(Layer, module)
        prefix = f"model.layers.{i}."
        targets[f"{prefix}input_layernorm.weight"] = layer.attention_norm
        targets[f"{prefix}post_attention_layernorm.weight"] = layer.mlp_norm
        for kind in ("weight", "bias"):
            fused, out = getattr(layer.qkv, kind), getattr(layer.o, kind)
            if fused is not None:
                parts = zip(("q", "k", "v"), fused.split(widths), strict=True)
                targets |= {f"{prefix}self_attn.{p}_proj.{kind}": part for p, part in parts}
            if out is not None:
                targets[f"{prefix}self_attn.o_proj.{kind}"] = out
        if layer.qk_norm is not None:
            # one weight over there serves all heads here
            targets[f"{prefix}self_attn.q_norm.weight"] = layer.qk_norm[: shape.heads]
            targets[f"{prefix}self_attn.k_norm.weight"] = layer.qk_norm[shape.heads :]
        gate, up = layer.gate_up.weight.chunk(2)
        targets[f"{prefix}mlp.gate_proj.weight"] = gate
        targets[f"{prefix}mlp.up_proj.weight"] = up
        targets[f"{prefix}mlp.down_proj.weight"] = layer.down.weight
    return targets


def _copy(file: Path, name: str, source: Tensor, target: Tensor) -> None:
    """Copy one weight; a norm shared by all heads is spread over them."""
    wanted = target.shape[-1:] if "_norm." in name else target.shape
    if source.shape != wanted:
        raise ModelError(
            f"{file}: {name} has shape {tuple(source.shape)}, the config asks for {tuple(wanted)}"
        )
    target.copy_(source)
