"""Qwen3-MoE: as `qwen3.py`, but most layers' MLP is the weighted sum of a few experts of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zerokl import ops
from zerokl.models import qwen3
from zerokl.models.fields import Fields, values_of
from zerokl.models.layers import gated_mlp, sparse_mlp
from zerokl.models.llama import DROPPED, attention, logits
from zerokl.models.split import Cut, Width
from zerokl.models.weights import Parameters, W, each_expert

__all__ = ["DROPPED", "WEIGHTS", "Config", "forward", "logits"]


@dataclass(frozen=True, slots=True, eq=False)
class Config(qwen3.Config):
    num_experts: int
    experts_per_token: int
    expert_size: int
    normalised: bool
    """The chosen experts' weights sum to 1; else they are the probabilities among all."""
    sparse: tuple[int, ...]
    """Layers with experts, by number."""

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        fields = Fields(config)
        plain = qwen3.Config.from_checkpoint(config)
        dense, every = fields.layer_numbers("mlp_only_layers", plain.num_layers), fields.count("decoder_sparse_step", 1)
        return cls(
            **values_of(plain),
            num_experts=fields.count("num_experts", 128),
            experts_per_token=fields.count("num_experts_per_tok", 8),
            expert_size=fields.count("moe_intermediate_size", 768),
            normalised=fields.flag("norm_topk_prob"),
            sparse=tuple(i for i in range(plain.num_layers) if i not in dense and (i + 1) % every == 0),
        )

    @property
    def axes(self) -> dict[str, int]:
        return super(Config, self).axes | {"X": self.num_experts, "M": self.expert_size}

    @property
    def cuts(self) -> tuple[Cut, ...]:
        return (*super(Config, self).cuts, Width("M"))


def sparse(config: Config) -> Sequence[int]:
    return config.sparse


def dense(config: Config) -> Sequence[int]:
    return [i for i in range(config.num_layers) if i not in config.sparse]


GATE_UP = "model.layers.{i}.mlp.experts.{e}.{gate,up}_proj.weight"
DOWN = "model.layers.{i}.mlp.experts.{e}.down_proj.weight"
# fmt: off
WEIGHTS: tuple[W, ...] = (
    *(row for row in qwen3.WEIGHTS if ".mlp." not in row.name),
    # checkpoint name                                 parameter                     shape   how
    W("model.layers.{i}.mlp.gate.weight",             "layers.{i}.router",          "X E",                 on=sparse),
    W(GATE_UP,                                        "layers.{i}.experts_gate_up", "M E",  each_expert(2), on=sparse),
    W(DOWN,                                           "layers.{i}.experts_down",    "E M",  each_expert(1), on=sparse),
    W("model.layers.{i}.mlp.{gate,up}_proj.weight",   "layers.{i}.gate_up",         "F E",                 on=dense),
    W("model.layers.{i}.mlp.down_proj.weight",        "layers.{i}.down",            "E F",                 on=dense),
)
# fmt: on


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, kv_layers: Sequence[ops.LayerKV]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; keys and values of all T tokens are stored in `kv_layers`."""
    x = ops.embedding(weights.embed, tokens)
    turns = config.rope.turns(ragged.positions)
    for layer, kv in zip(weights.layers, kv_layers, strict=True):
        x = ops.linear(attention(x, layer, turns, kv, config), layer.out, bias=layer.out_bias, residual=x)
        x = mlp(ops.rms_norm(x, layer.mlp_norm, config.norm_eps), layer, config, residual=x)
    return ops.rms_norm(x, weights.norm, config.norm_eps)


def mlp(x: np.ndarray, layer: Any, config: Config, residual: np.ndarray) -> np.ndarray:
    """residual + the layer's MLP or mixture."""
    if layer.router is None:
        return gated_mlp(x, layer, residual)
    return sparse_mlp(x, layer, config.experts_per_token, normalised=config.normalised, residual=residual)
