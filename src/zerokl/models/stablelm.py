"""StableLM 2: as `llama.py`, but with layer norms, and heads of which only a quarter turns."""

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


class Config(llama.Config):
    __slots__ = ()

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        fields = Fields(config)
        for key in ("use_parallel_residual", "qk_layernorm"):
            if fields.flag(key):
                raise UnsupportedModel(f"{key} isn't supported in StableLM")
        defaults = {"max_position_embeddings": 4096, "partial_rotary_factor": 0.25}
        renamed = {
            "rms_norm_eps": fields.positive("layer_norm_eps", 1e-5),
            "attention_bias": fields.flag("use_qkv_bias"),
        }
        return super().from_checkpoint(defaults | dict(config) | renamed)  # type: ignore[return-value]

    @property
    def out_bias(self) -> bool:
        return False


LAYER = "model.layers.{i}."
# fmt: off
WEIGHTS: tuple[W, ...] = (
    *llama.WEIGHTS,
    # checkpoint name                          parameter                     shape   how
    W(LAYER + "input_layernorm.bias",          "layers.{i}.input_norm_bias", "E",    vector),
    W(LAYER + "post_attention_layernorm.bias", "layers.{i}.mlp_norm_bias",   "E",    vector),
    W("model.norm.bias",                       "norm_bias",                  "E",    vector),
)
# fmt: on


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, kv_layers: Sequence[ops.LayerKV]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; keys and values of all T tokens are stored in `kv_layers`."""
    x, eps = ops.embedding(weights.embed, tokens), config.norm_eps
    turns = config.rope.turns(ragged.positions)
    for layer, kv in zip(weights.layers, kv_layers, strict=True):
        normed = ops.layer_norm(x, layer.input_norm, layer.input_norm_bias, eps)
        q = ops.rotate_and_store(ops.linear(normed, layer.qkv, bias=layer.qkv_bias), kv, turns, config.num_heads)
        x = ops.linear(ops.attention(q, kv, config.head_size**-0.5), layer.out, residual=x)
        x = gated_mlp(ops.layer_norm(x, layer.mlp_norm, layer.mlp_norm_bias, eps), layer, residual=x)
    return ops.layer_norm(x, weights.norm, weights.norm_bias, eps)
