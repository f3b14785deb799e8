"""Qwen3 (dense): as `llama.py`, but each head's queries and keys are normalised before they are turned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zerokl import ops
from zerokl.errors import UnsupportedModel
from zerokl.models import llama
from zerokl.models.fields import Fields
from zerokl.models.layers import gated_mlp
from zerokl.models.llama import DROPPED, logits
from zerokl.models.weights import Parameters, W, vector

__all__ = ["DROPPED", "WEIGHTS", "Config", "forward", "logits"]


HEAD_SIZE = 128
"""Of a config that doesn't say it, whatever hidden size over heads is."""


class Config(llama.Config):
    """The same numbers; sliding windows, which a config of this family may ask for, are refused."""

    __slots__ = ()

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        if Fields(config).flag("use_sliding_window"):
            raise UnsupportedModel("sliding windows in Qwen3 aren't supported")
        return super().from_checkpoint({"head_dim": HEAD_SIZE} | dict(config))  # type: ignore[return-value]


# fmt: off
WEIGHTS: tuple[W, ...] = (
    *llama.WEIGHTS,
    W("model.layers.{i}.self_attn.q_norm.weight",         "layers.{i}.q_norm",       "D",           vector),
    W("model.layers.{i}.self_attn.k_norm.weight",         "layers.{i}.k_norm",       "D",           vector),
)
# fmt: on


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, kv_layers: Sequence[ops.LayerKV]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; keys and values of all T tokens are stored in `kv_layers`."""
    x = ops.embedding(weights.embed, tokens)
    turns = config.rope.turns(ragged.positions)
    for layer, kv in zip(weights.layers, kv_layers, strict=True):
        x = attention(ops.rms_norm(x, layer.input_norm, config.norm_eps), layer, turns, kv, config, residual=x)
        x = gated_mlp(ops.rms_norm(x, layer.mlp_norm, config.norm_eps), layer, residual=x)
    return ops.rms_norm(x, weights.norm, config.norm_eps)


def attention(
    x: np.ndarray,
    layer: Any,
    turns: tuple[np.ndarray, np.ndarray],
    kv: ops.LayerKV,
    config: Config,
    residual: np.ndarray,
) -> np.ndarray:
    """residual + out(attention(x)), x [T, E]."""
    qkv = ops.linear(x, layer.qkv, bias=layer.qkv_bias)
    norms = {"q_norm": layer.q_norm, "k_norm": layer.k_norm, "norm_eps": config.norm_eps}
    q = ops.rotate_and_store(qkv, kv, turns, config.num_heads, **norms)
    seen = ops.attention(q, kv, config.head_size**-0.5)
    return ops.linear(seen, layer.out, bias=layer.out_bias, residual=residual)
