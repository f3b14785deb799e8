"""Qwen2 and 2.5: as `llama.py`, with biases of queries, keys and values; upper layers may see a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokl.models import llama, mistral
from zerokl.models.fields import Fields, values_of
from zerokl.models.llama import DROPPED, WEIGHTS, logits
from zerokl.models.mistral import forward

__all__ = ["DROPPED", "WEIGHTS", "Config", "forward", "logits"]

FULL, SLIDING = "full_attention", "sliding_attention"


class Config(mistral.Config):
    __slots__ = ()

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        fields = Fields(config)
        plain = llama.Config.from_checkpoint(
            {"max_position_embeddings": 32_768} | dict(config) | {"attention_bias": True}
        )
        window = fields.count("sliding_window", 4096) if fields.flag("use_sliding_window") else None
        below = fields.count("max_window_layers", 28) if window else plain.num_layers
        default = [SLIDING if i >= below else FULL for i in range(plain.num_layers)]
        kinds = fields.layer_types("layer_types", default, FULL, SLIDING)
        return cls(**values_of(plain), windows=tuple(window if kind == SLIDING else None for kind in kinds))

    @property
    def out_bias(self) -> bool:
        return False
