"""Linear layers on the GPU: the choice of a way, and the ways. All of them give the bits of the reference schedule."""

from __future__ import annotations

from typing import Any

import torch

from zerokl.errors import ShapeError
from zerokl.ops.matrix import DeviceMatrix
from zerokl.ops.triton.add import add
from zerokl.ops.triton.chain import empty, run_chain
from zerokl.ops.triton.choices import LIBRARY, Choices, Schedule, Shape
from zerokl.ops.triton.swiglu import swiglu

CHOICES = Choices()
"""Filled by `admit.admit` at start. A shape that was not admitted never reaches the library."""


def linear(x: Any, weight: DeviceMatrix, bias: Any, residual: Any, wide: bool) -> Any:
    """[T, K] -> [T, N], T a bucket; bf16, or float32 if `wide`."""
    columns, depth = weight.shape
    if x.shape[1] != depth:
        raise ShapeError(f"x must be [T, {depth}], not {list(x.shape)}")
    shape = Shape(len(x), columns, depth, False, bias is not None, residual is not None, wide)
    y = empty(x, columns, torch.float32 if wide else None)
    return compute(CHOICES.of(shape), x, weight.values, y, bias, residual)


def gated_linear(x: Any, weight: DeviceMatrix, bias: Any) -> Any:
    """swiglu(linear(x)): [T, K] -> [T, N / 2]."""
    columns, depth = weight.shape[0] // 2, weight.shape[1]
    way = CHOICES.of(Shape(len(x), columns, depth, True, bias is not None))
    if way == LIBRARY:
        return swiglu(compute(way, x, weight.values, empty(x, 2 * columns), bias, None))
    return compute(way, x, weight.values, empty(x, columns), bias, None, gated=True)


def compute(way: Schedule | str, x: Any, w: Any, y: Any, bias: Any, residual: Any, gated: bool = False) -> Any:
    """Fill y by one way."""
    if isinstance(way, Schedule):
        return run_chain(x, w, y, way, bias, residual, gated)
    if residual is None:
        return library(x, w, y)
    return add(library(x, w, empty(x, len(w))), residual, y)


def library(x: Any, w: Any, y: Any) -> Any:
    """cuBLAS with split-K forbidden. (With a residual as its C it rounds the sum first too, but copies the C.)"""
    if y.dtype == torch.float32:
        return torch.mm(x, w.t(), out_dtype=torch.float32, out=y)
    return torch.mm(x, w.t(), out=y)


def forbid_split_k() -> None:
    """Settings of torch that the library's bits rest on; `admit` proves that they work."""
    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    torch.backends.cuda.matmul.allow_tf32 = False
