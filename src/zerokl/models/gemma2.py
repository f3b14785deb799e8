"""Gemma 2: as `gemma3.py`, but every second layer sees a window, scores are capped, and heads have no norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokl.models import gemma3
from zerokl.models.fields import Fields, values_of
from zerokl.models.gemma3 import DROPPED, forward, logits
from zerokl.models.rope import rope_from
from zerokl.models.weights import W

__all__ = ["DROPPED", "WEIGHTS", "Config", "forward", "logits"]

DEFAULTS: dict[str, Any] = {
    "vocab_size": 256_000,
    "max_position_embeddings": 8192,
    "sliding_window_pattern": 2,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}


class Config(gemma3.Config):
    __slots__ = ()

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        config = DEFAULTS | dict(config)
        base = gemma3.Config.from_checkpoint(config | {"attn_logit_softcapping": None})
        rope, score_cap = rope_from(config, base.head_size), Fields(config).maybe("attn_logit_softcapping")
        return cls(**values_of(base) | {"ropes": (rope, rope), "score_cap": score_cap})


HEAD_NORMS = ("layers.{i}.q_norm", "layers.{i}.k_norm")
WEIGHTS: tuple[W, ...] = tuple(row for row in gemma3.WEIGHTS if row.parameter not in HEAD_NORMS)
