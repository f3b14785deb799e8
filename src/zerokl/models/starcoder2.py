"""StarCoder2: as `mistral.py`, but with layer norms, biases everywhere, and an MLP of two matrices and gelu."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zerokl import ops
from zerokl.models import llama, mistral
from zerokl.models.fields import Fields, values_of
from zerokl.models.layers import ungated_mlp
from zerokl.models.llama import biased, logits, untied
from zerokl.models.weights import Parameters, W, vector

__all__ = ["DROPPED", "WEIGHTS", "Config", "forward", "logits"]


@dataclass(frozen=True, slots=True, eq=False)
class Config(mistral.Config):
    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        fields = Fields(config)
        fields.require("hidden_act", "gelu_pytorch_tanh")
        renamed = {
            "hidden_act": "silu",  # Llama's, which this model doesn't have
            "rms_norm_eps": fields.positive("norm_epsilon", 1e-5),
            "attention_bias": fields.flag("use_bias", True),
            "tie_word_embeddings": fields.flag("tie_word_embeddings", True),
            "max_position_embeddings": fields.count("max_position_embeddings", 4096),
        }
        return cls(**values_of(mistral.Config.from_checkpoint(dict(config) | renamed)))


LAYER = "model.layers.{i}."
# fmt: off
WEIGHTS: tuple[W, ...] = (
    # checkpoint name                            parameter                     shape          how, when
    W("model.embed_tokens.weight",               "embed",                      "V E"),
    W(LAYER + "input_layernorm.weight",          "layers.{i}.input_norm",      "E",           vector),
    W(LAYER + "input_layernorm.bias",            "layers.{i}.input_norm_bias", "E",           vector),
    W(LAYER + "self_attn.{q,k,v}_proj.weight",   "layers.{i}.qkv",             "{H,K,K}·D E"),
    W(LAYER + "self_attn.{q,k,v}_proj.bias",     "layers.{i}.qkv_bias",        "{H,K,K}·D",   vector, biased),
    W(LAYER + "self_attn.o_proj.weight",         "layers.{i}.out",             "E H·D"),
    W(LAYER + "self_attn.o_proj.bias",           "layers.{i}.out_bias",        "E",           vector, biased),
    W(LAYER + "post_attention_layernorm.weight", "layers.{i}.mlp_norm",        "E",           vector),
    W(LAYER + "post_attention_layernorm.bias",   "layers.{i}.mlp_norm_bias",   "E",           vector),
    W(LAYER + "mlp.c_fc.weight",                 "layers.{i}.up",              "F E"),
    W(LAYER + "mlp.c_fc.bias",                   "layers.{i}.up_bias",         "F",           vector, biased),
    W(LAYER + "mlp.c_proj.weight",               "layers.{i}.down",            "E F"),
    W(LAYER + "mlp.c_proj.bias",                 "layers.{i}.down_bias",       "E",           vector, biased),
    W("model.norm.weight",                       "norm",                       "E",           vector),
    W("model.norm.bias",                         "norm_bias",                  "E",           vector),
    W("lm_head.weight",                          "head",                       "V E",         when=untied),
)
# fmt: on

DROPPED: tuple[str, ...] = llama.DROPPED


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, layers: Sequence[ops.LayerCache]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; keys and values of all T tokens are stored in `layers`."""
    x, eps = ops.embedding(weights.embed, tokens), config.norm_eps
    turns = config.rope.turns(ragged.positions)
    for layer, cache, window in zip(weights.layers, layers, config.windows, strict=True):
        normed = ops.layer_norm(x, layer.input_norm, layer.input_norm_bias, eps)
        x = mistral.attention(normed, layer, turns, cache, window, config, residual=x)
        x = ungated_mlp(ops.layer_norm(x, layer.mlp_norm, layer.mlp_norm_bias, eps), layer, residual=x)
    return ops.layer_norm(x, weights.norm, weights.norm_bias, eps)
