"""Gemma 3, text: most layers see a window, every sixth sees all; each branch is normalised before and after.

Other differences from `llama.py`: embeddings times sqrt(E); norms store their weight less 1; heads are normalised
before they are turned, by frequencies of their own in local layers; the MLP's gate is gelu; scores have a scale of
their own; logits may be capped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from typing import Any

import numpy as np

from zerokl import ops
from zerokl.errors import UnsupportedModel
from zerokl.models.fields import Fields
from zerokl.models.layers import keys_of
from zerokl.models.memory import Keys, LayerMemory
from zerokl.models.rope import Rope, rope_from
from zerokl.models.split import Cut, Heads, Share, Sharing, Width
from zerokl.models.weights import Parameters, W, one_more, vector

LOCAL, GLOBAL = "sliding_attention", "full_attention"


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
    window: int
    is_local: tuple[bool, ...]
    """Per layer."""
    score_scale: float
    score_cap: float | None
    """Gemma 2's only."""
    logit_cap: float | None
    untied: bool
    whole_norms: bool
    """The norms' weights are stored as they are, not less 1 (GGUF)."""
    ropes: tuple[Rope, Rope]
    """Of global and of local layers."""
    sharing: Sharing = field(default=None, kw_only=True)

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        fields = Fields(config)
        fields.require("hidden_activation", "gelu_pytorch_tanh")
        for key in ("attention_bias", "use_bidirectional_attention"):
            if fields.flag(key):
                raise UnsupportedModel(f"{key} isn't supported in Gemma 3")
        if config.get("attn_logit_softcapping") is not None:
            raise UnsupportedModel("attn_logit_softcapping isn't supported in Gemma 3, which has none")
        num_layers, num_heads = fields.count("num_hidden_layers"), fields.count("num_attention_heads")
        num_kv_heads, head_size = fields.count("num_key_value_heads", num_heads), fields.count("head_dim", 256)
        fields.divides("num_attention_heads", num_heads, num_kv_heads)
        fields.divides("head_dim", head_size, 2)
        every = fields.count("sliding_window_pattern", 6)
        default = [LOCAL if (i + 1) % every else GLOBAL for i in range(num_layers)]
        kinds = fields.layer_types("layer_types", default, LOCAL, GLOBAL)
        return cls(
            vocab_size=fields.count("vocab_size", 262_208),
            hidden_size=fields.count("hidden_size"),
            intermediate_size=fields.count("intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            context_length=fields.count("max_position_embeddings", 131_072),
            norm_eps=fields.positive("rms_norm_eps", 1e-6),
            window=fields.count("sliding_window", 4096),
            is_local=tuple(kind == LOCAL for kind in kinds),
            score_scale=inverse_root(fields.positive("query_pre_attn_scalar", 256)),
            score_cap=None,
            logit_cap=fields.maybe("final_logit_softcapping"),
            untied=not fields.flag("tie_word_embeddings", True),
            whole_norms=fields.flag("norms_are_whole"),
            ropes=(rope_of(config, GLOBAL, head_size), rope_of(config, LOCAL, head_size)),
        )

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
        return (Heads(), Width("F"))

    def of_rank(self, share: Share) -> Config:
        return replace(self, **share.heads())

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        heads, size = self.num_kv_heads, self.head_size
        keys = [Keys(heads, size, window, self.sharing) for window in (None, self.window)]
        return tuple(LayerMemory(keys[local]) for local in self.is_local)


def inverse_root(number: float) -> float:
    """1 / sqrt(number), correctly rounded: a C library's pow isn't."""
    return float(1 / Decimal(number).sqrt(Context(prec=50)))


def rope_of(config: Mapping[str, Any], kind: str, head_size: int) -> Rope:
    """The frequencies of one kind of layer, in the config's old form or its new one.

    old   rope_theta, rope_scaling: of global layers; rope_local_base_freq: of local ones, never scaled
    new   rope_parameters: {"full_attention": {...}, "sliding_attention": {...}}
    """
    by_kind = config.get("rope_parameters") or {}
    if kind in by_kind:
        return rope_from({"rope_parameters": by_kind[kind]}, head_size)
    if kind == LOCAL:
        return rope_from({"rope_theta": config.get("rope_local_base_freq") or 10_000.0}, head_size)
    scaling = {"rope_scaling": config.get("rope_scaling")}
    return rope_from({"rope_theta": config.get("rope_theta") or 1_000_000.0} | scaling, head_size)


def untied(config: Config) -> bool:
    return config.untied


def whole(config: Config) -> bool:
    return config.whole_norms


def less_one(config: Config) -> bool:
    return not config.whole_norms


def norm_row(name: str, parameter: str, shape: str = "E") -> tuple[W, W]:
    return W(name, parameter, shape, one_more, less_one), W(name, parameter, shape, vector, whole)


# fmt: off
WEIGHTS: tuple[W, ...] = (
    # checkpoint name                                               parameter                   shape          when
    W("model.embed_tokens.weight",                                  "embed",                    "V E"),
    *norm_row("model.layers.{i}.input_layernorm.weight",            "layers.{i}.input_norm"),
    W("model.layers.{i}.self_attn.{q,k,v}_proj.weight",             "layers.{i}.qkv",           "{H,K,K}·D E"),
    *norm_row("model.layers.{i}.self_attn.q_norm.weight",           "layers.{i}.q_norm",        "D"),
    *norm_row("model.layers.{i}.self_attn.k_norm.weight",           "layers.{i}.k_norm",        "D"),
    W("model.layers.{i}.self_attn.o_proj.weight",                   "layers.{i}.out",           "E H·D"),
    *norm_row("model.layers.{i}.post_attention_layernorm.weight",   "layers.{i}.attended_norm"),
    *norm_row("model.layers.{i}.pre_feedforward_layernorm.weight",  "layers.{i}.mlp_norm"),
    W("model.layers.{i}.mlp.{gate,up}_proj.weight",                 "layers.{i}.gate_up",       "F E"),
    W("model.layers.{i}.mlp.down_proj.weight",                      "layers.{i}.down",          "E F"),
    *norm_row("model.layers.{i}.post_feedforward_layernorm.weight", "layers.{i}.output_norm"),
    *norm_row("model.norm.weight",                                  "norm"),
    W("lm_head.weight",                                             "head",                     "V E", when=untied),
)
# fmt: on

DROPPED: tuple[str, ...] = ("lm_head.weight",)
"""A copy of the embedding, where the config ties them."""


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, layers: Sequence[ops.LayerCache]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; keys and values of all T tokens are stored in `layers`."""
    x = ops.scale(ops.embedding(weights.embed, tokens), root(config.hidden_size))
    turns = [rope.turns(ragged.positions) for rope in config.ropes]
    for layer, cache, local in zip(weights.layers, layers, config.is_local, strict=True):
        window = config.window if local else None
        seen = attention(norm(x, layer.input_norm, config), layer, turns[local], keys_of(cache), window, config)
        x = ops.scale(norm(ops.linear(seen, layer.out), layer.attended_norm, config), 1.0, residual=x)
        hidden = ops.geglu(ops.linear(norm(x, layer.mlp_norm, config), layer.gate_up))
        x = ops.scale(norm(ops.linear(hidden, layer.down), layer.output_norm, config), 1.0, residual=x)
    return norm(x, weights.norm, config)


def root(number: int) -> float:
    return float(Decimal(number).sqrt(Context(prec=50)))


def norm(x: np.ndarray, weight: np.ndarray, config: Config) -> np.ndarray:
    return ops.rms_norm(x, weight, config.norm_eps)


def attention(
    x: np.ndarray,
    layer: Any,
    turns: tuple[np.ndarray, np.ndarray],
    kv: ops.LayerKV,
    window: int | None,
    config: Config,
) -> np.ndarray:
    """What the heads see [T, H·D], x [T, E]."""
    norms = {name: getattr(layer, name, None) for name in ("q_norm", "k_norm")}
    q = ops.rotate_and_store(ops.linear(x, layer.qkv), kv, turns, config.num_heads, **norms, norm_eps=config.norm_eps)
    return ops.attention(q, kv, config.score_scale, window=window, softcap=config.score_cap)


def logits(weights: Parameters, config: Config, hidden_rows: np.ndarray) -> np.ndarray:
    """[R, E] -> [R, V]."""
    found = ops.linear(hidden_rows, weights.head if config.untied else weights.embed, wide=True)
    return found if config.logit_cap is None else ops.softcap(found, config.logit_cap)
