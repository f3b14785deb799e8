"""Granite 4 hybrid: most layers are Mamba-2, some attend; an MLP that is everybody's, and perhaps experts beside it.

Embeddings, branches, scores and logits have multipliers of their own. Attention has rotary positions only if the config
says so. A Mamba layer cuts its projection into gate, convolved channels (x, b, c) and time steps:

    y = scan(x, b, c, step);   h + m * out(norm(y * silu(gate)))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from zerokl import ops
from zerokl.errors import CheckpointError, UnsupportedModel
from zerokl.models import llama
from zerokl.models.fields import Fields, values_of
from zerokl.models.layers import conv_state, keys_of, recurrent_state
from zerokl.models.memory import Conv, Keys, LayerMemory, Recurrent
from zerokl.models.split import Cut, Heads, Width
from zerokl.models.weights import Parameters, W, stacked, taps, vector

MAMBA, ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")
"""Each kind's name in the release's configs and in Hugging Face's later ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Config(llama.Config):
    is_mamba: tuple[bool, ...]
    """Per layer."""
    rotates: bool
    shared_size: int
    num_experts: int
    experts_per_token: int
    state_heads: int
    state_head_size: int
    state_groups: int
    state_size: int
    taps: int
    step_limits: tuple[float, float]
    conv_bias: bool
    embedding_multiplier: float
    residual_multiplier: float
    score_scale: float
    logits_scaling: float

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        fields = Fields(config)
        for key in ("attention_bias", "mamba_proj_bias"):
            if fields.flag(key):
                raise UnsupportedModel(f"{key} isn't supported in Granite's hybrids")
        kind = config.get("position_embedding_type")
        if kind not in (None, "nope", "rope"):
            raise UnsupportedModel(f"position_embedding_type {kind!r:.40} isn't supported; supported: rope, nope")
        plain = llama.Config.from_checkpoint(config)
        kinds = fields.layer_types("layer_types", [MAMBA[0]] * plain.num_layers, *MAMBA, *ATTENTION)
        heads, groups = fields.count("mamba_n_heads", 128), fields.count("mamba_n_groups", 1)
        fields.divides("mamba_n_heads", heads, groups)
        width = fields.count("mamba_expand", 2) * plain.hidden_size
        size = width // heads if config.get("mamba_d_head") in (None, "auto") else fields.count("mamba_d_head")
        if size * heads != width:
            raise CheckpointError(f"the config's {heads} state heads of {size} don't make {width}")
        return cls(
            **values_of(plain),
            is_mamba=tuple(kind in MAMBA for kind in kinds),
            rotates=kind == "rope",
            shared_size=fields.count("shared_intermediate_size", 1024),
            num_experts=0 if config.get("num_local_experts") == 0 else fields.count("num_local_experts", 8),
            experts_per_token=0 if config.get("num_local_experts") == 0 else fields.count("num_experts_per_tok", 2),
            state_heads=heads,
            state_head_size=size,
            state_groups=groups,
            state_size=fields.count("mamba_d_state", 256),
            taps=fields.count("mamba_d_conv", 4),
            step_limits=limits(config.get("time_step_limit")),
            conv_bias=fields.flag("mamba_conv_bias", True),
            embedding_multiplier=fields.positive("embedding_multiplier", 1.0),
            residual_multiplier=fields.positive("residual_multiplier", 1.0),
            score_scale=fields.positive("attention_multiplier", 1.0),
            logits_scaling=fields.positive("logits_scaling", 1.0),
        )

    @property
    def width(self) -> int:
        """Of a Mamba layer."""
        return self.state_heads * self.state_head_size

    @property
    def channels(self) -> int:
        """That are convolved."""
        return self.width + 2 * self.state_groups * self.state_size

    @property
    def axes(self) -> dict[str, int]:
        """F: width of an expert; C, Z, A, U: a Mamba layer's convolved channels, projected ones, heads, width."""
        return super(Config, self).axes | {
            "X": self.num_experts,
            "S": self.shared_size,
            "C": self.channels,
            "Z": self.width + self.channels + self.state_heads,
            "A": self.state_heads,
            "U": self.width,
            "T": self.taps,
        }

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Mamba layers are computed whole by every rank."""
        return (Heads(), Width("F"), Width("S"))

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        attending = LayerMemory(Keys(self.num_kv_heads, self.head_size, sharing=self.sharing))
        state = Recurrent((self.state_heads, self.state_size, self.state_head_size), inputs=0, chunk=1)
        mamba = LayerMemory(states=(Conv(self.taps, self.channels), state))
        return tuple(mamba if is_mamba else attending for is_mamba in self.is_mamba)


def limits(given: Any) -> tuple[float, float]:
    """Of the time step: 0 and infinity, unless the config says otherwise."""
    if given is None:
        return 0.0, inf
    if not isinstance(given, Sequence) or len(given) != 2 or not all(isinstance(x, int | float) for x in given):
        raise CheckpointError(f"the config's time_step_limit must be two numbers, not {given!r:.60}")
    return float(given[0]), float(given[1])


def mamba(config: Config) -> Sequence[int]:
    return [i for i, is_mamba in enumerate(config.is_mamba) if is_mamba]


def attending(config: Config) -> Sequence[int]:
    return [i for i, is_mamba in enumerate(config.is_mamba) if not is_mamba]


def mixed(config: Config) -> bool:
    return config.num_experts > 0


def biased(config: Config) -> bool:
    return config.conv_bias


LAYER, STATE, MOE = "model.layers.{i}.", "model.layers.{i}.mamba.", "model.layers.{i}.block_sparse_moe."
experts = stacked
# fmt: off
WEIGHTS: tuple[W, ...] = (
    # checkpoint name                               parameter                     shape          how, when, where
    W("model.embed_tokens.weight",                  "embed",                      "V E"),
    W(LAYER + "input_layernorm.weight",             "layers.{i}.input_norm",      "E",           vector),
    W(LAYER + "self_attn.{q,k,v}_proj.weight",      "layers.{i}.qkv",             "{H,K,K}·D E", on=attending),
    W(LAYER + "self_attn.o_proj.weight",            "layers.{i}.out",             "E H·D",       on=attending),
    W(STATE + "in_proj.weight",                     "layers.{i}.projection",      "Z E",         on=mamba),
    W(STATE + "conv1d.weight",                      "layers.{i}.taps",            "C 1 T",       taps, on=mamba),
    W(STATE + "conv1d.bias",                        "layers.{i}.taps_bias",       "C",           vector, biased, mamba),
    W(STATE + "dt_bias",                            "layers.{i}.step_bias",       "A",           vector, on=mamba),
    W(STATE + "A_log",                              "layers.{i}.log_rate",        "A",           vector, on=mamba),
    W(STATE + "D",                                  "layers.{i}.skip",            "A",           vector, on=mamba),
    W(STATE + "norm.weight",                        "layers.{i}.state_norm",      "U",           vector, on=mamba),
    W(STATE + "out_proj.weight",                    "layers.{i}.seen",            "E U",         on=mamba),
    W(LAYER + "post_attention_layernorm.weight",    "layers.{i}.mlp_norm",        "E",           vector),
    W(MOE + "router.layer.weight",                  "layers.{i}.router",          "X E",         when=mixed),
    W(MOE + "input_linear.weight",                  "layers.{i}.experts_gate_up", "X F+F E",     experts, mixed),
    W(MOE + "output_linear.weight",                 "layers.{i}.experts_down",    "X E F",       experts, mixed),
    W(LAYER + "shared_mlp.input_linear.weight",     "layers.{i}.gate_up",         "S+S E"),
    W(LAYER + "shared_mlp.output_linear.weight",    "layers.{i}.down",            "E S"),
    W("model.norm.weight",                          "norm",                       "E",           vector),
    W("lm_head.weight",                             "head",                       "V E",         when=llama.untied),
)
# fmt: on

DROPPED: tuple[str, ...] = ("lm_head.weight",)
"""A copy of the embedding, where the config ties them."""


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, layers: Sequence[ops.LayerCache]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; `layers` get what the tokens leave behind."""
    x = ops.scale(ops.embedding(weights.embed, tokens), config.embedding_multiplier)
    turns = ops.rope_table(ragged.positions, config.rope.inv_freq[: None if config.rotates else 0])
    for layer, cache, is_mamba in zip(weights.layers, layers, config.is_mamba, strict=True):
        normed = ops.rms_norm(x, layer.input_norm, config.norm_eps)
        y = scanned(normed, layer, cache, config) if is_mamba else attention(normed, layer, turns, cache, config)
        x = ops.scale(y, config.residual_multiplier, residual=x)
        y = mlp(ops.rms_norm(x, layer.mlp_norm, config.norm_eps), layer, config)
        x = ops.scale(y, config.residual_multiplier, residual=x)
    return ops.rms_norm(x, weights.norm, config.norm_eps)


def attention(
    x: np.ndarray, layer: Any, turns: tuple[np.ndarray, np.ndarray], cache: ops.LayerCache, config: Config
) -> np.ndarray:
    """out(attention(x)), x [T, E]; without rotary positions the table of turns is empty."""
    keys = keys_of(cache)
    q = ops.rotate_and_store(ops.linear(x, layer.qkv), keys, turns, config.num_heads)
    return ops.linear(ops.attention(q, keys, config.score_scale), layer.out)


def scanned(x: np.ndarray, layer: Any, cache: ops.LayerCache, config: Config) -> np.ndarray:
    """out(norm(what the state shows * silu(gate)))."""
    projected, ends = ops.linear(x, layer.projection), [config.width, config.width + config.channels]
    gate, u, raw = ops.columns(projected, *ends)
    conv, state, depth = conv_state(cache, 0), recurrent_state(cache, 1), config.state_groups * config.state_size
    convolved = ops.convolved(u, layer.taps, conv, bias=layer.taps_bias, activation="silu")
    parts = ops.columns(convolved, config.width, config.width + depth)
    value, b, c = (part.reshape(len(x), count, -1) for part, count in zip(parts, counts(config), strict=True))
    step, decay = ops.time_steps(raw, layer.step_bias, layer.log_rate, config.step_limits)
    shown = ops.selective_scan(value, b, c, step, decay, layer.skip, state).reshape(len(x), -1)
    return ops.linear(grouped_norm(ops.gated(shown, gate, "silu"), layer.state_norm, config), layer.seen)


def counts(config: Config) -> tuple[int, int, int]:
    """Heads of x, groups of b and of c."""
    return config.state_heads, config.state_groups, config.state_groups


def grouped_norm(x: np.ndarray, weight: np.ndarray, config: Config) -> np.ndarray:
    """Each group of channels by its own root mean square."""
    width, groups = config.width // config.state_groups, range(config.state_groups)
    parts = ops.columns(x, *(width * group for group in groups[1:]))
    normed = [
        ops.rms_norm(part, weight[width * group : width * (group + 1)], config.norm_eps)
        for group, part in zip(groups, parts, strict=True)
    ]
    return ops.joined(*normed) if len(normed) > 1 else normed[0]


def mlp(x: np.ndarray, layer: Any, config: Config) -> np.ndarray:
    """Everybody's MLP, plus the mixture where there is one."""
    shared = ops.linear(ops.gated_linear(x, layer.gate_up), layer.down)
    if layer.router is None:
        return shared
    chosen, weights = ops.route(ops.linear(x, layer.router, wide=True), config.experts_per_token)
    return ops.experts(x, layer.experts_gate_up, layer.experts_down, chosen, weights, residual=shared)


def logits(weights: Parameters, config: Config, hidden_rows: np.ndarray) -> np.ndarray:
    """[R, E] -> [R, V]."""
    return ops.scale(llama.logits(weights, config, hidden_rows), 1 / config.logits_scaling)
