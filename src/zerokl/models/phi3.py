"""Phi-3, 3.5 and 4: as `mistral.py`, but stored fused: queries, keys and values in one tensor, gate and up in another.

Small models turn only a part of each head; long ones stretch their frequencies by LongRoPE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokl.models import llama, mistral
from zerokl.models.llama import DROPPED, logits
from zerokl.models.mistral import forward
from zerokl.models.weights import W

__all__ = ["DROPPED", "WEIGHTS", "Config", "forward", "logits"]

DEFAULTS = {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5}


class Config(mistral.Config):
    __slots__ = ()

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        return super().from_checkpoint(DEFAULTS | dict(config))  # type: ignore[return-value]


FUSED = {
    "layers.{i}.qkv": W("model.layers.{i}.self_attn.qkv_proj.weight", "layers.{i}.qkv", "H·D+K·D+K·D E"),
    "layers.{i}.gate_up": W("model.layers.{i}.mlp.gate_up_proj.weight", "layers.{i}.gate_up", "F+F E"),
}
WEIGHTS: tuple[W, ...] = tuple(FUSED.get(row.parameter, row) for row in llama.WEIGHTS)
