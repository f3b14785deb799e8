"""What decoders share: cutting a fused projection into heads, and the gated MLP."""

from __future__ import annotations

from typing import Any

import numpy as np

from zerokl import ops
from zerokl.ops import split_heads

__all__ = ["gated_mlp", "split_heads"]


def gated_mlp(x: np.ndarray, layer: Any, residual: np.ndarray) -> np.ndarray:
    """residual + down(silu(gate(x)) * up(x)), gate and up being one matrix."""
    hidden = ops.gated_linear(x, layer.gate_up, bias=layer.gate_up_bias)
    return ops.linear(hidden, layer.down, bias=layer.down_bias, residual=residual)
