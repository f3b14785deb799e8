"""Llama 2 and 3, SmolLM2 and their kin: the plain pre-norm decoder with grouped-query attention; others differ from it.

Rotary positions with plain, linear or Llama 3 frequencies; SwiGLU; biases and tied embeddings if the config says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Self

import numpy as np

from zerokl import ops
from zerokl.models.fields import Fields
from zerokl.models.layers import gated_mlp
from zerokl.models.rope import Rope, context_length, rope_from
from zerokl.models.split import Cut, Heads, Share, Sharing, Width
from zerokl.models.weights import Parameters, W, vector


@dataclass(frozen=True, slots=True, eq=False)
class Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    context_length: int
    norm_eps: float
    attention_bias: bool
    mlp_bias: bool
    untied: bool
    """The output matrix is a tensor of its own, not the embedding's."""
    rope: Rope
    sharing: Sharing = field(default=None, kw_only=True)
    """Of key heads among the query heads that are here, if it is uneven."""

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        fields = Fields(config)
        fields.require("hidden_act", "silu")
        num_heads, hidden_size = fields.count("num_attention_heads"), fields.count("hidden_size")
        num_kv_heads = fields.count("num_key_value_heads", num_heads)
        fields.divides("num_attention_heads", num_heads, num_kv_heads)
        head_size = fields.count("head_dim", hidden_size // num_heads)
        fields.divides("head_dim", head_size, 2)
        return cls(
            vocab_size=fields.count("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.count("intermediate_size"),
            num_layers=fields.count("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            context_length=context_length(config, 2048),
            norm_eps=fields.positive("rms_norm_eps", 1e-6),
            attention_bias=fields.flag("attention_bias"),
            mlp_bias=fields.flag("mlp_bias"),
            untied=not fields.flag("tie_word_embeddings"),
            rope=rope_from(config, head_size),
        )

    @property
    def out_bias(self) -> bool:
        return self.attention_bias

    @property
    def head_norms(self) -> bool:
        """Whether each head's queries and keys are normalised before they are turned."""
        return False

    @property
    def axes(self) -> dict[str, int]:
        return {
            "V": self.vocab_size,
            "E": self.hidden_size,
            "F": self.intermediate_size,
            "H": self.num_heads,
            "K": self.num_kv_heads,
            "D": self.head_size,
        }

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """What ranks share."""
        return (Heads(), Width("F"))

    def of_rank(self, share: Share) -> Self:
        """With the numbers of the heads that a rank has."""
        return replace(self, **share.heads())


biased, out_biased = attrgetter("attention_bias"), attrgetter("out_bias")
mlp_biased, untied = attrgetter("mlp_bias"), attrgetter("untied")

# fmt: off
WEIGHTS: tuple[W, ...] = (
    # checkpoint name                                     parameter                  shape          how, when
    W("model.embed_tokens.weight",                        "embed",                   "V E"),
    W("model.layers.{i}.input_layernorm.weight",          "layers.{i}.input_norm",   "E",           vector),
    W("model.layers.{i}.self_attn.{q,k,v}_proj.weight",   "layers.{i}.qkv",          "{H,K,K}·D E"),
    W("model.layers.{i}.self_attn.{q,k,v}_proj.bias",     "layers.{i}.qkv_bias",     "{H,K,K}·D",   vector, biased),
    W("model.layers.{i}.self_attn.o_proj.weight",         "layers.{i}.out",          "E H·D"),
    W("model.layers.{i}.self_attn.o_proj.bias",           "layers.{i}.out_bias",     "E",           vector, out_biased),
    W("model.layers.{i}.post_attention_layernorm.weight", "layers.{i}.mlp_norm",     "E",           vector),
    W("model.layers.{i}.mlp.{gate,up}_proj.weight",       "layers.{i}.gate_up",      "F E"),
    W("model.layers.{i}.mlp.{gate,up}_proj.bias",         "layers.{i}.gate_up_bias", "F",           vector, mlp_biased),
    W("model.layers.{i}.mlp.down_proj.weight",            "layers.{i}.down",         "E F"),
    W("model.layers.{i}.mlp.down_proj.bias",              "layers.{i}.down_bias",    "E",           vector, mlp_biased),
    W("model.norm.weight",                                "norm",                    "E",           vector),
    W("lm_head.weight",                                   "head",                    "V E",         when=untied),
)
# fmt: on

DROPPED: tuple[str, ...] = (
    "model.layers.{i}.self_attn.rotary_emb.inv_freq",  # old conversions stored it; the config determines it
    "lm_head.weight",  # a copy of the embedding, where the config ties them
)


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, kv_layers: Sequence[ops.LayerKV]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; keys and values of all T tokens are stored in `kv_layers`."""
    return finish(weights, config, *body(weights, config, tokens, ragged, kv_layers))


def body(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, kv_layers: Sequence[ops.LayerKV]
) -> tuple[np.ndarray, np.ndarray]:
    """(what the last layer's attention saw, its residual) of all T rows, and everything stored: `finish` does the rest.

    From there on a row looks at nothing but itself, so only rows whose logits somebody wants need to go on.
    """
    x = ops.embedding(weights.embed, tokens)
    turns = config.rope.turns(ragged.positions)
    for layer, kv in zip(weights.layers[:-1], kv_layers[:-1], strict=True):
        x = close(attention(x, layer, turns, kv, config), layer, config, residual=x)
    return attention(x, weights.layers[-1], turns, kv_layers[-1], config), x


def finish(weights: Parameters, config: Config, seen: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """Any of `body`'s rows -> hidden rows [R, E] after the final norm."""
    x = close(seen, weights.layers[-1], config, residual)
    return ops.rms_norm(x, weights.norm, config.norm_eps)


def attention(
    x: np.ndarray, layer: Any, turns: tuple[np.ndarray, np.ndarray], kv: ops.LayerKV, config: Config
) -> np.ndarray:
    """What each head of each row of x [T, E] saw, [T, H D]."""
    qkv = ops.linear(x, layer.qkv, bias=layer.qkv_bias, norm=(layer.input_norm, config.norm_eps))
    norms = {"q_norm": layer.q_norm, "k_norm": layer.k_norm, "norm_eps": config.norm_eps} if config.head_norms else {}
    q = ops.rotate_and_store(qkv, kv, turns, config.num_heads, **norms)
    return ops.attention(q, kv, config.head_size**-0.5)


def close(seen: np.ndarray, layer: Any, config: Config, residual: np.ndarray) -> np.ndarray:
    """The layer behind its attention."""
    x = ops.linear(seen, layer.out, bias=layer.out_bias, residual=residual)
    return gated_mlp(x, layer, residual=x, norm=(layer.mlp_norm, config.norm_eps))


def logits(weights: Parameters, config: Config, hidden_rows: np.ndarray) -> np.ndarray:
    """[R, E] -> [R, V]."""
    return ops.linear(hidden_rows, weights.head if config.untied else weights.embed, wide=True)
