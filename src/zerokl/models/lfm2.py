"""LFM2: most layers mix their tokens by a gated short convolution, some by attention with normalised heads.

    b, c, x = cut(in(norm(h)));   h + out(c * convolution(b * x))

Otherwise as `llama.py`, with a width of its own for the MLP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zerokl import ops
from zerokl.models import llama
from zerokl.models.fields import Fields, values_of
from zerokl.models.layers import conv_state, gated_mlp, keys_of
from zerokl.models.llama import logits
from zerokl.models.memory import Conv, Keys, LayerMemory
from zerokl.models.weights import Parameters, W, taps, vector

__all__ = ["DROPPED", "WEIGHTS", "Config", "forward", "logits"]

CONV, ATTENTION = "conv", "full_attention"
DEFAULT_THETA = 1_000_000.0


@dataclass(frozen=True, slots=True, eq=False)
class Config(llama.Config):
    taps: int
    conv_bias: bool
    is_conv: tuple[bool, ...]
    """Per layer."""

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        fields = Fields(config)
        tied = fields.flag("tie_embedding", fields.flag("tie_word_embeddings", True))
        given = {
            "rope_theta": DEFAULT_THETA,
            "max_position_embeddings": 128_000,
            **config,
            "rms_norm_eps": fields.positive("norm_eps", 1e-5),
            "tie_word_embeddings": tied,
        }
        plain = replace(llama.Config.from_checkpoint(given), intermediate_size=hidden_width(fields))
        attending = fields.layer_numbers("full_attn_idxs", plain.num_layers, range(plain.num_layers))
        default = [ATTENTION if i in attending else CONV for i in range(plain.num_layers)]
        kinds = fields.layer_types("layer_types", default, CONV, ATTENTION)
        return cls(
            **values_of(plain),
            taps=fields.count("conv_L_cache", 3),
            conv_bias=fields.flag("conv_bias"),
            is_conv=tuple(kind == CONV for kind in kinds),
        )

    @property
    def axes(self) -> dict[str, int]:
        return super(Config, self).axes | {"T": self.taps}

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        attending = LayerMemory(Keys(self.num_kv_heads, self.head_size, sharing=self.sharing))
        mixing = LayerMemory(states=(Conv(self.taps, self.hidden_size),))
        return tuple(mixing if conv else attending for conv in self.is_conv)


def hidden_width(fields: Fields) -> int:
    """The MLP's: two thirds of what the config says, times a factor, rounded up, unless it says to take it as it is."""
    width = fields.count("block_ff_dim", fields.count("intermediate_size"))
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return width
    multiple = fields.count("block_multiple_of", 256)
    width = int(fields.positive("block_ffn_dim_multiplier", 1.0) * (2 * width // 3))
    return -(-width // multiple) * multiple


def mixing(config: Config) -> Sequence[int]:
    return [i for i, conv in enumerate(config.is_conv) if conv]


def attending(config: Config) -> Sequence[int]:
    return [i for i, conv in enumerate(config.is_conv) if not conv]


def conv_biased(config: Config) -> bool:
    return config.conv_bias


LAYER = "model.layers.{i}."
# fmt: off
WEIGHTS: tuple[W, ...] = (
    # checkpoint name                            parameter                 shape          how, when, where
    W("model.embed_tokens.weight",               "embed",                  "V E"),
    W(LAYER + "operator_norm.weight",            "layers.{i}.input_norm",  "E",           vector),
    W(LAYER + "self_attn.{q,k,v}_proj.weight",   "layers.{i}.qkv",         "{H,K,K}·D E", on=attending),
    W(LAYER + "self_attn.q_layernorm.weight",    "layers.{i}.q_norm",      "D",           vector, on=attending),
    W(LAYER + "self_attn.k_layernorm.weight",    "layers.{i}.k_norm",      "D",           vector, on=attending),
    W(LAYER + "self_attn.out_proj.weight",       "layers.{i}.out",         "E H·D",       on=attending),
    W(LAYER + "conv.in_proj.weight",             "layers.{i}.split",       "3E E",        on=mixing),
    W(LAYER + "conv.in_proj.bias",               "layers.{i}.split_bias",  "3E",          vector, conv_biased, mixing),
    W(LAYER + "conv.conv.weight",                "layers.{i}.taps",        "E 1 T",       taps, on=mixing),
    W(LAYER + "conv.conv.bias",                  "layers.{i}.taps_bias",   "E",           vector, conv_biased, mixing),
    W(LAYER + "conv.out_proj.weight",            "layers.{i}.mixed",       "E E",         on=mixing),
    W(LAYER + "conv.out_proj.bias",              "layers.{i}.mixed_bias",  "E",           vector, conv_biased, mixing),
    W(LAYER + "ffn_norm.weight",                 "layers.{i}.mlp_norm",    "E",           vector),
    W(LAYER + "feed_forward.{w1,w3}.weight",     "layers.{i}.gate_up",     "F E"),
    W(LAYER + "feed_forward.w2.weight",          "layers.{i}.down",        "E F"),
    W("model.embedding_norm.weight",             "norm",                   "E",           vector),
    W("lm_head.weight",                          "head",                   "V E",         when=llama.untied),
)
# fmt: on

DROPPED: tuple[str, ...] = ("lm_head.weight",)
"""A copy of the embedding, where the config ties them."""


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, layers: Sequence[ops.LayerCache]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; `layers` get keys and values, or the convolutions' inputs."""
    x = ops.embedding(weights.embed, tokens)
    turns = config.rope.turns(ragged.positions)
    for layer, cache, conv in zip(weights.layers, layers, config.is_conv, strict=True):
        normed = ops.rms_norm(x, layer.input_norm, config.norm_eps)
        x = mixed(normed, layer, cache, config, x) if conv else attention(normed, layer, turns, cache, config, x)
        x = gated_mlp(ops.rms_norm(x, layer.mlp_norm, config.norm_eps), layer, residual=x)
    return ops.rms_norm(x, weights.norm, config.norm_eps)


def mixed(x: np.ndarray, layer: Any, cache: ops.LayerCache, config: Config, residual: np.ndarray) -> np.ndarray:
    """residual + out(c * convolution(b * x))."""
    projected, width = ops.linear(x, layer.split, bias=layer.split_bias), config.hidden_size
    before, after, value = ops.columns(projected, width, 2 * width)
    y = ops.convolved(ops.gated(value, before), layer.taps, conv_state(cache, 0), bias=layer.taps_bias)
    return ops.linear(ops.gated(y, after), layer.mixed, bias=layer.mixed_bias, residual=residual)


def attention(
    x: np.ndarray,
    layer: Any,
    turns: tuple[np.ndarray, np.ndarray],
    cache: ops.LayerCache,
    config: Config,
    residual: np.ndarray,
) -> np.ndarray:
    """residual + out(attention(x)), x [T, E]."""
    keys = keys_of(cache)
    norms = {"q_norm": layer.q_norm, "k_norm": layer.k_norm, "norm_eps": config.norm_eps}
    q = ops.rotate_and_store(ops.linear(x, layer.qkv), keys, turns, config.num_heads, **norms)
    return ops.linear(ops.attention(q, keys, config.head_size**-0.5), layer.out, residual=residual)
