"""Granite 3, dense: as `llama.py`, with multipliers of embeddings, branches, scores and logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zerokl import ops
from zerokl.models import llama
from zerokl.models.fields import Fields, values_of
from zerokl.models.llama import DROPPED, WEIGHTS
from zerokl.models.weights import Parameters

__all__ = ["DROPPED", "WEIGHTS", "Config", "forward", "logits"]


@dataclass(frozen=True, slots=True, eq=False)
class Config(llama.Config):
    embedding_multiplier: float
    residual_multiplier: float
    score_scale: float
    logits_scaling: float

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        fields = Fields(config)
        return cls(
            **values_of(llama.Config.from_checkpoint(config)),
            embedding_multiplier=fields.positive("embedding_multiplier", 1.0),
            residual_multiplier=fields.positive("residual_multiplier", 1.0),
            score_scale=fields.positive("attention_multiplier", 1.0),
            logits_scaling=fields.positive("logits_scaling", 1.0),
        )


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, kv_layers: Sequence[ops.LayerKV]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; keys and values of all T tokens are stored in `kv_layers`."""
    x = ops.scale(ops.embedding(weights.embed, tokens), config.embedding_multiplier)
    turns = config.rope.turns(ragged.positions)
    for layer, kv in zip(weights.layers, kv_layers, strict=True):
        y = attention(ops.rms_norm(x, layer.input_norm, config.norm_eps), layer, turns, kv, config)
        x = ops.scale(y, config.residual_multiplier, residual=x)
        y = mlp(ops.rms_norm(x, layer.mlp_norm, config.norm_eps), layer)
        x = ops.scale(y, config.residual_multiplier, residual=x)
    return ops.rms_norm(x, weights.norm, config.norm_eps)


def attention(
    x: np.ndarray, layer: Any, turns: tuple[np.ndarray, np.ndarray], kv: ops.LayerKV, config: Config
) -> np.ndarray:
    """out(attention(x)), x [T, E]."""
    q = ops.rotate_and_store(ops.linear(x, layer.qkv, bias=layer.qkv_bias), kv, turns, config.num_heads)
    return ops.linear(ops.attention(q, kv, config.score_scale), layer.out, bias=layer.out_bias)


def mlp(x: np.ndarray, layer: Any) -> np.ndarray:
    hidden = ops.gated_linear(x, layer.gate_up, bias=layer.gate_up_bias)
    return ops.linear(hidden, layer.down, bias=layer.down_bias)


def logits(weights: Parameters, config: Config, hidden_rows: np.ndarray) -> np.ndarray:
    """[R, E] -> [R, V]."""
    return ops.scale(llama.logits(weights, config, hidden_rows), 1 / config.logits_scaling)
