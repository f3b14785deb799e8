"""What a layer remembers of a sequence between steps: how a model declares it.

    memory = tuple(LayerMemory(Keys(4, 128, window=512), (Conv(4, 512), Conv(4, 512))) for _ in range(num_layers))

A config without the property `memory` is plain full attention in every layer. `docs/design/0003-hybrid.md` says what
a layer is given for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

FLOAT_BYTES = 4
KEY_BYTES = {"float32": 4, "bfloat16": 2, "fp8_e4m3": 1}
"""How keys and values may be kept -> bytes of a number."""


class Keys(Struct, frozen=True):
    """Keys and values: of all positions, or of the last `window`, the token itself among them."""

    num_kv_heads: int
    head_size: int
    window: int | None = None
    sharing: tuple[int, int] | None = None
    """As in `ops.LayerKV`: uneven shares of a model's heads."""
    dtype: str = "float32"
    scales: tuple[float, float] = (1.0, 1.0)
    """What keys and values are divided by before they are rounded to fp8."""

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.num_kv_heads * self.head_size * KEY_BYTES[self.dtype]


class Conv(Struct, frozen=True):
    """The last `width - 1` inputs of a causal convolution of `width` taps, the token itself being the last tap."""

    width: int
    channels: int

    @property
    def state_bytes(self) -> int:
        return (self.width - 1) * self.channels * FLOAT_BYTES


class Recurrent(Struct, frozen=True):
    """A state at multiples of `chunk`, and the `inputs` floats of each token since the last of them."""

    shape: tuple[int, ...]
    inputs: int
    chunk: int = 64

    @property
    def state_bytes(self) -> int:
        """Of a checkpoint; a live slot has the chunk's inputs too."""
        return prod(self.shape) * FLOAT_BYTES

    @property
    def input_bytes(self) -> int:
        return self.chunk * self.inputs * FLOAT_BYTES


StateSpec = Conv | Recurrent


class LayerMemory(Struct, frozen=True):
    keys: Keys | None = None
    states: tuple[StateSpec, ...] = ()


class CacheFormat(Struct, frozen=True):
    """How all layers keep keys and values; `scales` per layer, for fp8."""

    dtype: str = "float32"
    scales: tuple[tuple[float, float], ...] = ()


AS_FLOATS = CacheFormat()


@lru_cache(maxsize=16)
def kept_as(memory: tuple[LayerMemory, ...], cache: CacheFormat) -> tuple[LayerMemory, ...]:
    """The same layers, their keys kept so."""
    scales = cache.scales or ((1.0, 1.0),) * len(memory)
    return tuple(
        replace(layer, keys=replace(layer.keys, dtype=cache.dtype, scales=own)) if layer.keys else layer
        for layer, own in zip(memory, scales, strict=True)
    )


def memory_of(config: Any) -> tuple[LayerMemory, ...]:
    """What each layer of a model remembers: as its config declares, or every key."""
    declared: tuple[LayerMemory, ...] | None = getattr(config, "memory", None)
    if declared is not None:
        return declared
    num_layers: int = config.num_layers
    keys = Keys(config.num_kv_heads, config.head_size, sharing=getattr(config, "sharing", None))
    return (LayerMemory(keys),) * num_layers


def windows_of(memory: Iterable[LayerMemory]) -> tuple[int, ...]:
    """The sliding kinds, in the order of their first layer: layers of equal window share pages' numbers."""
    found = (layer.keys.window for layer in memory if layer.keys)
    return tuple(dict.fromkeys(window for window in found if window is not None))


def convolution_width(memory: Iterable[LayerMemory]) -> int:
    """Taps of the widest short convolution; 0 if there is none."""
    return max((spec.width for layer in memory for spec in layer.states if isinstance(spec, Conv)), default=0)
