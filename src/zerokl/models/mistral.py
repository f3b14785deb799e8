"""Mistral: as `llama.py`, but where the config has a window, each token sees only that many of the last ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zerokl import ops
from zerokl.models import llama
from zerokl.models.fields import Fields, values_of
from zerokl.models.layers import gated_mlp, keys_of
from zerokl.models.llama import DROPPED, WEIGHTS, logits
from zerokl.models.memory import Keys, LayerMemory
from zerokl.models.weights import Parameters

__all__ = ["DROPPED", "WEIGHTS", "Config", "forward", "logits"]


@dataclass(frozen=True, slots=True, eq=False)
class Config(llama.Config):
    windows: tuple[int | None, ...]
    """Per layer: how many tokens a token sees, itself among them; None: all."""

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        plain = llama.Config.from_checkpoint(config)
        window = None if config.get("sliding_window") is None else Fields(config).count("sliding_window")
        return cls(**values_of(plain), windows=(window,) * plain.num_layers)

    @property
    def memory(self) -> tuple[LayerMemory, ...] | None:
        if not any(self.windows):
            return None
        heads, size = self.num_kv_heads, self.head_size
        return tuple(LayerMemory(Keys(heads, size, window, self.sharing)) for window in self.windows)


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, layers: Sequence[ops.LayerCache]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; keys and values of all T tokens are stored in `layers`."""
    x = ops.embedding(weights.embed, tokens)
    turns = config.rope.turns(ragged.positions)
    for layer, cache, window in zip(weights.layers, layers, config.windows, strict=True):
        normed = ops.rms_norm(x, layer.input_norm, config.norm_eps)
        x = attention(normed, layer, turns, cache, window, config, residual=x)
        x = gated_mlp(ops.rms_norm(x, layer.mlp_norm, config.norm_eps), layer, residual=x)
    return ops.rms_norm(x, weights.norm, config.norm_eps)


def attention(
    x: np.ndarray,
    layer: Any,
    turns: tuple[np.ndarray, np.ndarray],
    cache: ops.LayerCache,
    window: int | None,
    config: Config,
    residual: np.ndarray,
) -> np.ndarray:
    """residual + out(attention(x)), x [T, E]."""
    keys = keys_of(cache)
    q = ops.rotate_and_store(ops.linear(x, layer.qkv, bias=layer.qkv_bias), keys, turns, config.num_heads)
    seen = ops.attention(q, keys, config.head_size**-0.5, window=window)
    return ops.linear(seen, layer.out, bias=layer.out_bias, residual=residual)
