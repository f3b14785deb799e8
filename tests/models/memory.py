"""A checkpoint in memory, of the tiny weights that `tests/checkpoints/tiny.py` writes as files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.checkpoints.tiny import TINY, tiny_weights
from zerokl import models
from zerokl.config import Config

VOCABULARY = 284


@dataclass
class MemoryTensor:
    stored: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def dtype(self) -> str:
        return {"float32": "F32", "float16": "F16", "uint16": "BF16"}[self.stored.dtype.name]

    def array(self) -> np.ndarray:
        return self.stored

    def forget(self) -> None: ...


@dataclass
class MemoryCheckpoint:
    config: dict[str, Any]
    tensors: dict[str, MemoryTensor]


def tiny_checkpoint(seed: int = 0, **overrides: Any) -> MemoryCheckpoint:
    """A tiny Llama in float32; `overrides` replace keys of its config."""
    config = TINY | {"vocab_size": VOCABULARY, "torch_dtype": "float32"} | overrides
    weights = tiny_weights(config, seed)
    return MemoryCheckpoint(config, {name: MemoryTensor(array) for name, array in weights.items()})


def tiny_model(seed: int = 0, dtype: str = "auto", **overrides: Any) -> models.Model:
    return models.load(tiny_checkpoint(seed, **overrides), Config(dtype=dtype))
