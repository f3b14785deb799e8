"""Where the tests run, and what arrays look like there."""

from __future__ import annotations

import os
from typing import Any

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
NARROW = torch.float32 if INTERPRETED else torch.bfloat16
"""Activations: numpy, which the interpreter computes with, has no bfloat16."""


def normal(seed: int, *shape: int, dtype: Any = NARROW) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE).to(dtype)


def same(a: Any, b: Any) -> bool:
    """Equal bits."""
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))


def relative_error(found: Any, exact: Any) -> float:
    exact = exact.double()
    return float((found.double() - exact).norm() / exact.norm())
