"""Mixtral: as `mistral.py`, but each token's MLP is the weighted sum of a few experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zerokl import ops
from zerokl.models import mistral
from zerokl.models.fields import Fields, values_of
from zerokl.models.layers import sparse_mlp
from zerokl.models.llama import DROPPED, logits
from zerokl.models.llama import WEIGHTS as LLAMA_WEIGHTS
from zerokl.models.mistral import attention
from zerokl.models.weights import Parameters, W, each_expert

__all__ = ["DROPPED", "WEIGHTS", "Config", "forward", "logits"]


DEFAULT_THETA = 1_000_000.0


@dataclass(frozen=True, slots=True, eq=False)
class Config(mistral.Config):
    num_experts: int
    experts_per_token: int

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        fields = Fields(config)
        return cls(
            **values_of(mistral.Config.from_checkpoint({"rope_theta": DEFAULT_THETA} | dict(config))),
            num_experts=fields.count("num_local_experts", 8),
            experts_per_token=fields.count("num_experts_per_tok", 2),
        )

    @property
    def axes(self) -> dict[str, int]:
        return super(Config, self).axes | {"X": self.num_experts}


EXPERTS = "model.layers.{i}.block_sparse_moe.experts.{e}"
# fmt: off
WEIGHTS: tuple[W, ...] = (
    *(row for row in LLAMA_WEIGHTS if ".mlp." not in row.name),
    # checkpoint name                                  parameter                     shape   how
    W("model.layers.{i}.block_sparse_moe.gate.weight", "layers.{i}.router",          "X E"),
    W(EXPERTS + ".{w1,w3}.weight",                     "layers.{i}.experts_gate_up", "F E",  each_expert(2)),
    W(EXPERTS + ".w2.weight",                          "layers.{i}.experts_down",    "E F",  each_expert(1)),
)
# fmt: on


def forward(
    weights: Parameters, config: Config, tokens: np.ndarray, ragged: ops.Ragged, layers: Sequence[ops.LayerCache]
) -> np.ndarray:
    """Hidden rows [T, E] after the final norm; keys and values of all T tokens are stored in `layers`."""
    x = ops.embedding(weights.embed, tokens)
    turns = config.rope.turns(ragged.positions)
    for layer, cache, window in zip(weights.layers, layers, config.windows, strict=True):
        normed = ops.rms_norm(x, layer.input_norm, config.norm_eps)
        x = attention(normed, layer, turns, cache, window, config, residual=x)
        x = sparse_mlp(ops.rms_norm(x, layer.mlp_norm, config.norm_eps), layer, config.experts_per_token, residual=x)
    return ops.rms_norm(x, weights.norm, config.norm_eps)
