"""Qwen3 (dense): as `llama.py`, but each head's queries and keys are normalised before they are turned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokl.errors import UnsupportedModel
from zerokl.models import llama
from zerokl.models.fields import Fields
from zerokl.models.llama import DROPPED, body, finish, forward, logits
from zerokl.models.weights import W, vector

__all__ = ["DROPPED", "WEIGHTS", "Config", "body", "finish", "forward", "logits"]


HEAD_SIZE = 128
"""Of a config that doesn't say it, whatever hidden size over heads is."""


class Config(llama.Config):
    """The same numbers; sliding windows, which a config of this family may ask for, are refused."""

    __slots__ = ()

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any]) -> Config:
        """From a config in Hugging Face's keys. Raises CheckpointError, UnsupportedModel."""
        if Fields(config).flag("use_sliding_window"):
            raise UnsupportedModel("sliding windows in Qwen3 aren't supported")
        return super().from_checkpoint({"head_dim": HEAD_SIZE} | dict(config))  # type: ignore[return-value]

    @property
    def head_norms(self) -> bool:
        return True


# fmt: off
WEIGHTS: tuple[W, ...] = (
    *llama.WEIGHTS,
    W("model.layers.{i}.self_attn.q_norm.weight",         "layers.{i}.q_norm",       "D",           vector),
    W("model.layers.{i}.self_attn.k_norm.weight",         "layers.{i}.k_norm",       "D",           vector),
)
# fmt: on
