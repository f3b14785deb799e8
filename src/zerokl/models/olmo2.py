"""OLMo 2: as `llama.py`, but branches are normalised after they are computed, not before, and queries and keys over all
heads at once, before they are turned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zerokl import ops
from zerokl.models import llama
from zerokl.models.llama import DROPPED, biased, logits, untied
from zerokl.models.split import Cut, Width
from zerokl.models.weights import Parameters, W, vector

__all__ = ["DROPPED", "WEIGHTS", "Config", "forward", "logits"]


class Config(llama.Config):
    __slots__ = ()

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Attention is computed whole by every rank: its norms are over all heads at once."""
        return (Width("F"),)


LAYER, ATTENTION = "model.layers.{i}.", "model.layers.{i}.self_attn."
# fmt: off
WEIGHTS: tuple[W, ...] = (
    # checkpoint name                              parameter                   shape   how, when
    W("model.embed_tokens.weight",                 "embed",                    "V E"),
    W(ATTENTION + "q_proj.weight",                 "layers.{i}.q",             "H·D E"),
    W(ATTENTION + "k_proj.weight",                 "layers.{i}.k",             "K·D E"),
    W(ATTENTION + "v_proj.weight",                 "layers.{i}.v",             "K·D E"),
    W(ATTENTION + "q_proj.bias",                   "layers.{i}.q_bias",        "H·D",  vector, biased),
    W(ATTENTION + "k_proj.bias",                   "layers.{i}.k_bias",        "K·D",  vector, biased),
    W(ATTENTION + "v_proj.bias",                   "layers.{i}.v_bias",        "K·D",  vector, biased),
    W(ATTENTION + "q_norm.weight",                 "layers.{i}.q_norm",        "H·D",  vector),
    W(ATTENTION + "k_norm.weight",                 "layers.{i}.k_norm",        "K·D",  vector),
    W(ATTENTION + "o_proj.weight",                 "layers.{i}.out",           "E H·D"),
    W(ATTENTION + "o_proj.bias",                   "layers.{i}.out_bias",      "E",    vector, biased),
    W(LAYER + "post_attention_layernorm.weight",   "layers.{i}.attended_norm", "E",    vector),
    W(LAYER + "mlp.{gate,up}_proj.weight",         "layers.{i}.gate_up",       "F E"),
    W(LAYER + "mlp.down_proj.weight",              "layers.{i}.down",          "E F"),
    W(LAYER + "post_feedforward_layernorm.weight", "layers.{i}.output_norm",   "E",    vector),
    W("model.norm.weight",                         "norm",                     "E",    vector),
    W("lm_head.weight",                            "head",                     "V E",  when=untied),
)
# fmt: on


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, kv_layers: Sequence[ops.LayerKV]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; keys and values of all T tokens are stored in `kv_layers`."""
    x = ops.embedding(weights.embed, tokens)
    turns = config.rope.turns(ragged.positions)
    for layer, kv in zip(weights.layers, kv_layers, strict=True):
        y = attention(x, layer, turns, kv, config)
        x = ops.scale(ops.rms_norm(y, layer.attended_norm, config.norm_eps), 1.0, residual=x)
        y = ops.linear(ops.gated_linear(x, layer.gate_up), layer.down)
        x = ops.scale(ops.rms_norm(y, layer.output_norm, config.norm_eps), 1.0, residual=x)
    return ops.rms_norm(x, weights.norm, config.norm_eps)


def attention(
    x: np.ndarray, layer: Any, turns: tuple[np.ndarray, np.ndarray], kv: ops.LayerKV, config: Config
) -> np.ndarray:
    """out(attention(x)), x [T, E]."""
    q = ops.rms_norm(ops.linear(x, layer.q, bias=layer.q_bias), layer.q_norm, config.norm_eps)
    k = ops.rms_norm(ops.linear(x, layer.k, bias=layer.k_bias), layer.k_norm, config.norm_eps)
    v = ops.linear(x, layer.v, bias=layer.v_bias)
    turned = ops.rotate_and_store(ops.joined(q, k, v), kv, turns, config.num_heads)
    seen = ops.attention(turned, kv, config.head_size**-0.5)
    return ops.linear(seen, layer.out, bias=layer.out_bias)
