"""Qwen3-Next: three layers in four remember by the gated delta rule, the fourth attends, with a gate; experts in all.

Differences from `qwen3_moe.py`: norms store their weight less 1 (but for the recurrent layers' own); the attention's
output is multiplied by a sigmoid that its query matrix also gives; one more expert is everybody's, with a gate too. In
a recurrent layer q, k and v go through a short convolution and silu; q and k are normalised to length 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np

from zerokl import ops
from zerokl.errors import UnsupportedModel
from zerokl.models import llama, qwen3_moe
from zerokl.models.fields import Fields, values_of
from zerokl.models.layers import conv_state, gated_mlp, keys_of, recurrent_state, sparse_mlp
from zerokl.models.llama import logits
from zerokl.models.memory import Conv, Keys, LayerMemory, Recurrent
from zerokl.models.qwen3_moe import dense, sparse
from zerokl.models.split import Cut, Width
from zerokl.models.weights import Parameters, W, each_expert, one_more, taps, vector

__all__ = ["DROPPED", "WEIGHTS", "Config", "forward", "logits"]

RECURRENT, ATTENTION = "linear_attention", "full_attention"
DEFAULTS = {
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "max_position_embeddings": 32_768,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
}
LENGTH_EPS = 1e-6
"""Under the root, where queries and keys are normalised to length 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Config(qwen3_moe.Config):
    is_recurrent: tuple[bool, ...]
    """Per layer."""
    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    taps: int
    shared_size: int

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        fields = Fields(config)
        if fields.flag("attention_bias"):
            raise UnsupportedModel("attention_bias isn't supported in Qwen3-Next")
        plain = qwen3_moe.Config.from_checkpoint(DEFAULTS | dict(config))
        every = fields.count("full_attention_interval", 4)
        default = [RECURRENT if (i + 1) % every else ATTENTION for i in range(plain.num_layers)]
        kinds = fields.layer_types("layer_types", default, RECURRENT, ATTENTION)
        key_heads, value_heads = fields.count("linear_num_key_heads", 16), fields.count("linear_num_value_heads", 32)
        fields.divides("linear_num_value_heads", value_heads, key_heads)
        return cls(
            **values_of(plain),
            is_recurrent=tuple(kind == RECURRENT for kind in kinds),
            key_heads=key_heads,
            value_heads=value_heads,
            key_size=fields.count("linear_key_head_dim", 128),
            value_size=fields.count("linear_value_head_dim", 128),
            taps=fields.count("linear_conv_kernel_dim", 4),
            shared_size=fields.count("shared_expert_intermediate_size", 512),
        )

    @property
    def axes(self) -> dict[str, int]:
        """G, A: heads of keys and of values in recurrent layers; C: what is convolved; Z: all that is projected."""
        keys, values = self.key_heads * self.key_size, self.value_heads * self.value_size
        return super(Config, self).axes | {
            "G": self.key_heads,
            "A": self.value_heads,
            "U": self.value_size,
            "C": 2 * keys + values,
            "Z": 2 * keys + 2 * values,
            "T": self.taps,
            "S": self.shared_size,
        }

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Recurrent layers are computed whole by every rank."""
        return (*super(Config, self).cuts, Width("S"))

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        attending = LayerMemory(Keys(self.num_kv_heads, self.head_size, sharing=self.sharing))
        state = Recurrent((self.value_heads, self.key_size, self.value_size), inputs=0, chunk=1)
        recurrent = LayerMemory(states=(Conv(self.taps, self.axes["C"]), state))
        return tuple(recurrent if is_recurrent else attending for is_recurrent in self.is_recurrent)


def recurrent(config: Config) -> Sequence[int]:
    return [i for i, is_recurrent in enumerate(config.is_recurrent) if is_recurrent]


def attending(config: Config) -> Sequence[int]:
    return [i for i, is_recurrent in enumerate(config.is_recurrent) if not is_recurrent]


LAYER, DELTA, MLP = "model.layers.{i}.", "model.layers.{i}.linear_attn.", "model.layers.{i}.mlp."
gate_up, down = each_expert(2), each_expert(1)
# fmt: off
WEIGHTS: tuple[W, ...] = (
    # checkpoint name                              parameter                     shape          how, where
    W("model.embed_tokens.weight",                 "embed",                      "V E"),
    W(LAYER + "input_layernorm.weight",            "layers.{i}.input_norm",      "E",           one_more),
    W(LAYER + "self_attn.{q,k,v}_proj.weight",     "layers.{i}.qkv",             "{2H,K,K}·D E",on=attending),
    W(LAYER + "self_attn.q_norm.weight",           "layers.{i}.q_norm",          "D",           one_more, on=attending),
    W(LAYER + "self_attn.k_norm.weight",           "layers.{i}.k_norm",          "D",           one_more, on=attending),
    W(LAYER + "self_attn.o_proj.weight",           "layers.{i}.out",             "E H·D",       on=attending),
    W(DELTA + "in_proj_qkvz.weight",               "layers.{i}.qkvz",            "Z E",         on=recurrent),
    W(DELTA + "in_proj_ba.weight",                 "layers.{i}.ba",              "2A E",        on=recurrent),
    W(DELTA + "conv1d.weight",                     "layers.{i}.taps",            "C 1 T",       taps, on=recurrent),
    W(DELTA + "dt_bias",                           "layers.{i}.step_bias",       "A",           vector, on=recurrent),
    W(DELTA + "A_log",                             "layers.{i}.log_rate",        "A",           vector, on=recurrent),
    W(DELTA + "norm.weight",                       "layers.{i}.value_norm",      "U",           vector, on=recurrent),
    W(DELTA + "out_proj.weight",                   "layers.{i}.known",           "E A·U",       on=recurrent),
    W(LAYER + "post_attention_layernorm.weight",   "layers.{i}.mlp_norm",        "E",           one_more),
    W(MLP + "gate.weight",                         "layers.{i}.router",          "X E",         on=sparse),
    W(qwen3_moe.GATE_UP,                           "layers.{i}.experts_gate_up", "M E",         gate_up, on=sparse),
    W(qwen3_moe.DOWN,                              "layers.{i}.experts_down",    "E M",         down, on=sparse),
    W(MLP + "shared_expert.{gate,up}_proj.weight", "layers.{i}.shared_gate_up",  "S E",         on=sparse),
    W(MLP + "shared_expert.down_proj.weight",      "layers.{i}.shared_down",     "E S",         on=sparse),
    W(MLP + "shared_expert_gate.weight",           "layers.{i}.shared_gate",     "1 E",         on=sparse),
    W(MLP + "{gate,up}_proj.weight",               "layers.{i}.gate_up",         "F E",         on=dense),
    W(MLP + "down_proj.weight",                    "layers.{i}.down",            "E F",         on=dense),
    W("model.norm.weight",                         "norm",                       "E",           one_more),
    W("lm_head.weight",                            "head",                       "V E",         when=llama.untied),
)
# fmt: on

DROPPED: tuple[str, ...] = ("lm_head.weight", "mtp.*")
"""A copy of the embedding, where the config ties them; heads that guess several tokens."""


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, layers: Sequence[ops.LayerCache]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; `layers` get what the tokens leave behind."""
    x = ops.embedding(weights.embed, tokens)
    turns = config.rope.turns(ragged.positions)
    for layer, cache, is_recurrent in zip(weights.layers, layers, config.is_recurrent, strict=True):
        normed = ops.rms_norm(x, layer.input_norm, config.norm_eps)
        x = (
            delta(normed, layer, cache, config, x)
            if is_recurrent
            else attention(normed, layer, turns, cache, config, x)
        )
        x = mlp(ops.rms_norm(x, layer.mlp_norm, config.norm_eps), layer, config, residual=x)
    return ops.rms_norm(x, weights.norm, config.norm_eps)


def attention(
    x: np.ndarray,
    layer: Any,
    turns: tuple[np.ndarray, np.ndarray],
    cache: ops.LayerCache,
    config: Config,
    residual: np.ndarray,
) -> np.ndarray:
    """residual + out(attention(x) * sigmoid(gate)); queries and gates of a head lie side by side."""
    projected, width = ops.linear(x, layer.qkv), 2 * config.num_heads * config.head_size
    both, kv = ops.columns(projected, width)
    q, gate = cut(both, config.num_heads, [config.head_size])
    norms = {"q_norm": layer.q_norm, "k_norm": layer.k_norm, "norm_eps": config.norm_eps}
    keys, qkv = keys_of(cache), ops.joined(q, kv)
    seen = ops.attention(
        ops.rotate_and_store(qkv, keys, turns, config.num_heads, **norms), keys, config.head_size**-0.5
    )
    return ops.linear(ops.gated(seen, gate, "sigmoid"), layer.out, residual=residual)


def delta(x: np.ndarray, layer: Any, cache: ops.LayerCache, config: Config, residual: np.ndarray) -> np.ndarray:
    """residual + out(norm(what the state knows) * silu(z))."""
    heads, size, values = config.key_heads, config.key_size, config.value_heads // config.key_heads
    u, z = cut(ops.linear(x, layer.qkvz), heads, [size, size, values * config.value_size])
    b, a = cut(ops.linear(x, layer.ba), heads, [values])
    conv, state = conv_state(cache, 0), recurrent_state(cache, 1)
    mixed = ops.convolved(u, layer.taps, conv, activation="silu")
    q, k, v = ops.columns(mixed, heads * size, 2 * heads * size)
    q, k = (part.reshape(-1, heads, size) for part in (q, k))
    q, k = of_length(q, 1 / size), of_length(k, inverse_root(size))
    _, decay = ops.time_steps(a, layer.step_bias, layer.log_rate)
    beta = ops.sigmoid(b)
    known = ops.gated_delta(q, k, v.reshape(len(x), config.value_heads, -1), decay, beta, state)
    known = ops.rms_norm(known, layer.value_norm, config.norm_eps).reshape(len(x), -1)
    return ops.linear(ops.gated(known, z, "silu"), layer.known, residual=residual)


def cut(projected: np.ndarray, heads: int, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """[T, heads · (a + b + ... + rest)] -> ([T, all a, all b, ...], [T, all rest])."""
    whole, rows, start = projected.reshape(len(projected), heads, -1), [], 0
    for size in sizes:
        rows.append(whole[:, :, start : start + size].reshape(len(projected), -1))
        start += size
    rest = whole[:, :, start:].reshape(len(projected), -1)
    return ops.joined(*rows), ops.columns(rest)[0]


def of_length(x: np.ndarray, length: float) -> np.ndarray:
    """Heads x / sqrt(|x|² + eps) · sqrt(D) · length: the root mean square's norm is the length's, but for sqrt(D)."""
    size = x.shape[-1]
    return ops.rms_norm(x, ops.filled_like(x, size, length), LENGTH_EPS / size)


def inverse_root(number: int) -> float:
    return float(1 / Decimal(number).sqrt(Context(prec=50)))


def mlp(x: np.ndarray, layer: Any, config: Config, residual: np.ndarray) -> np.ndarray:
    """residual + the dense MLP, or the mixture and the gated expert that is everybody's."""
    if layer.router is None:
        return gated_mlp(x, layer, residual)
    y = sparse_mlp(x, layer, config.experts_per_token, normalised=config.normalised, residual=residual)
    shared = ops.linear(ops.gated_linear(x, layer.shared_gate_up), layer.shared_down)
    gate = ops.sigmoid(ops.linear(x, layer.shared_gate, wide=True))
    return ops.scale(shared, gate.reshape(-1), residual=y)
