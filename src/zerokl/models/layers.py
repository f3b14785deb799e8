"""What decoders share: cutting a fused projection into heads, the gated MLP, and the mixture of such."""

from __future__ import annotations

from typing import Any

import numpy as np

from zerokl import ops
from zerokl.errors import EngineError
from zerokl.ops import split_heads

__all__ = ["conv_state", "gated_mlp", "keys_of", "recurrent_state", "sparse_mlp", "split_heads", "ungated_mlp"]


def keys_of(cache: ops.LayerCache | ops.LayerKV) -> ops.LayerKV:
    """The keys of a layer that declares some, or declares nothing."""
    if isinstance(cache, ops.LayerKV):
        return cache
    if cache.keys is None:
        raise EngineError("a layer that declares no keys attends")
    return cache.keys


def conv_state(cache: ops.LayerCache, number: int) -> ops.ConvState:
    """One of the states that a layer declares, which is a convolution's."""
    state = cache.states[number]
    if not isinstance(state, ops.ConvState):
        raise EngineError(f"state {number} of a layer is no convolution's")
    return state


def recurrent_state(cache: ops.LayerCache, number: int) -> ops.RecurrentState:
    """One of the states that a layer declares, which is a recurrence's."""
    state = cache.states[number]
    if not isinstance(state, ops.RecurrentState):
        raise EngineError(f"state {number} of a layer is no recurrence's")
    return state


def gated_mlp(
    x: np.ndarray, layer: Any, residual: np.ndarray, norm: tuple[np.ndarray, float] | None = None
) -> np.ndarray:
    """residual + down(silu(gate(x)) * up(x)), gate and up being one matrix; x by `rms_norm` first, if there is one."""
    hidden = ops.gated_linear(x, layer.gate_up, bias=getattr(layer, "gate_up_bias", None), norm=norm)
    return ops.linear(hidden, layer.down, bias=getattr(layer, "down_bias", None), residual=residual)


def ungated_mlp(x: np.ndarray, layer: Any, residual: np.ndarray) -> np.ndarray:
    """residual + down(gelu(up(x)))."""
    hidden = ops.gelu(ops.linear(x, layer.up, bias=layer.up_bias))
    return ops.linear(hidden, layer.down, bias=layer.down_bias, residual=residual)


def sparse_mlp(
    x: np.ndarray, layer: Any, experts_per_token: int, residual: np.ndarray, *, normalised: bool = True
) -> np.ndarray:
    """residual + the gated MLPs of each row's likeliest experts, by their softmax weights."""
    chosen, weights = ops.route(ops.linear(x, layer.router, wide=True), experts_per_token, normalised=normalised)
    return ops.experts(x, layer.experts_gate_up, layer.experts_down, chosen, weights, residual=residual)
