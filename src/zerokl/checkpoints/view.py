"""What a checkpoint is, whatever its files: a config, named tensors, a tokenizer, a digest.

    Hugging Face folder ─┐
    GGUF file ───────────┼─▶ Checkpoint(config, tensors, tokenizer, generation_config, digest)
    dummy weights ───────┘

Keys of the config and names of the tensors are Hugging Face's; rotary rows are in its half-split order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from zerokl.quant import Quantised, Scheme
from zerokl.types import TokenizerFiles

Array = NDArray[Any]


class Tensor(Struct, frozen=True):
    """One stored tensor. Nothing is read until `array()`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As stored: F32, F16, BF16, a GGUF block type such as Q4_1, or NVFP4, FP8, FP8_BLOCK with their companions."""
    nbytes: int
    """As stored."""
    read: Callable[[], Array]
    forget: Callable[[], None] = lambda: None
    """Let go of the mapped pages that were read: they stay in the system's cache, but are this process's no more."""
    packed: Callable[[], Quantised] | None = None
    """A quantised tensor in its stored form; None for plain numbers and types that are only dequantised."""

    def array(self) -> Array:
        """The exact values: F32 as float32, F16 as float16, BF16 as its bits in uint16, what is quantised as float32.

        Where the file's order allows it, a read-only view of the mapped file; else a new array.
        """
        return self.read()

    def bits(self) -> NDArray[np.uint8]:
        """The codes of a type of eight bits."""
        return self.read().view(np.uint8)

    def float32(self) -> NDArray[np.float32]:
        """The exact values as float32, whatever the stored type."""
        array = self.array()
        if array.dtype == np.uint16:
            return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return array.astype(np.float32, copy=False)


@dataclass(frozen=True)
class Checkpoint:
    """A model as stored, opened and checked but not yet read."""

    path: Path
    config: dict[str, Any]
    """config.json, or the same keys made from GGUF metadata."""
    tensors: Mapping[str, Tensor]
    read_tokenizer: Callable[[], TokenizerFiles | None] = field(repr=False, compare=False)
    read_generation_config: Callable[[], dict[str, Any]] = field(repr=False, compare=False)
    scheme: Scheme | None = field(default=None, kw_only=True)
    """What the config says about quantised weights; None: nothing, or a GGUF file, whose tensors say it themselves."""
    cache_scales: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)
    """Scales of cached keys and values, by name."""
    compute_digest: Callable[[], str] = field(repr=False, compare=False)

    @cached_property
    def tokenizer(self) -> TokenizerFiles | None:
        """None: the checkpoint brings no tokenizer. Raises CheckpointError for a bad one."""
        return self.read_tokenizer()

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """generation_config.json, or the same keys made from GGUF metadata; {} if there is none."""
        return self.read_generation_config()

    @cached_property
    def digest(self) -> str:
        """Hex sha256 of everything that decides the weights: equal digests, equal weights. Slow once per file."""
        return self.compute_digest()
