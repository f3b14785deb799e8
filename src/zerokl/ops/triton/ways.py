"""Linear layers on the GPU: the choice of a way, and the ways. All of them give the bits of the reference schedule."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from zerokl.errors import ShapeError
from zerokl.ops.choices import (
    BLOCKS,
    EACH_LEAF,
    LIBRARY_LEAVES,
    NORMED_DEPTHS,
    REFERENCE,
    BlockGroups,
    Choices,
    GatedGroups,
    LeafGroups,
    LeafTiles,
    OneRow,
    Packed,
    Persistent,
    Relay,
    Schedule,
    Shape,
    Streamed,
    StreamedRows,
    WarpRow,
    Way,
    by_blocks,
)
from zerokl.ops.matrix import DeviceMatrix, PackedLeaves, PackedMatrix
from zerokl.ops.triton.block_groups import run_block_groups
from zerokl.ops.triton.chain import empty, run_chain
from zerokl.ops.triton.finish import finish
from zerokl.ops.triton.gated_groups import run_gated_groups
from zerokl.ops.triton.leaf_groups import run_groups
from zerokl.ops.triton.leaves import added_up, fold_leaves, reference, run_library, run_parts, run_tiles
from zerokl.ops.triton.numbers import NARROW
from zerokl.ops.triton.one_row import run_one_row
from zerokl.ops.triton.packed import unpacked
from zerokl.ops.triton.packed_rows import run_packed
from zerokl.ops.triton.persistent import run_persistent
from zerokl.ops.triton.relay import run_relay
from zerokl.ops.triton.rms_norm import rms_norm
from zerokl.ops.triton.streamed import run_streamed
from zerokl.ops.triton.streamed_rows import run_streamed_rows
from zerokl.ops.triton.swiglu import swiglu
from zerokl.ops.triton.warp_row import run_warp_row

CHOICES = Choices()
"""Filled by `admit.admit` at start. A shape that was not admitted never reaches the library."""


def linear(
    x: Any, weight: DeviceMatrix | PackedMatrix | PackedLeaves, bias: Any, residual: Any, wide: bool, norm: Any = None
) -> Any:
    """[T, K] -> [T, N], T a bucket; bf16, or float32 if `wide`. A residual is added to in its place, and returned."""
    columns, depth = weight.shape
    if x.shape[1] != depth:
        raise ShapeError(f"x must be [T, {depth}], not {list(x.shape)}")
    if norm is not None and residual is None and not wide and takes_norm(x, weight, bias, norm):
        return normed_linear(x, weight, norm)
    x, added = narrow(x if norm is None else rms_norm(x, *norm)), residual is not None
    return fill(x, weight, residual if added else empty(x, columns, torch.float32 if wide else None), bias, added, wide)


def fill(x: Any, weight: Any, y: Any, bias: Any = None, added: bool = False, wide: bool = False) -> Any:
    """y, filled or added to, by the admitted way."""
    columns, depth = weight.shape
    shape = Shape(len(x), columns, depth, False, bias is not None, added, wide, weight.ends, weight.form)
    return compute(CHOICES.of(shape), x, operand(weight), y, bias, added, ends=weight.ends)


def parts_of(x: Any, weight: PackedLeaves, by: Way | None = None) -> Any:
    """[leaves, T, N] f32: each leaf by itself, with its factor, by a given way or its admitted one."""
    rows, columns = len(x), weight.shape[0]
    parts = torch.empty((len(weight.leaves), rows, columns), dtype=torch.float32, device=x.device)
    for leaf, (start, stop), part in zip(weight.leaves, pairwise((0, *weight.ends)), parts, strict=True):
        own = x[:, start:stop].contiguous()
        if by is None:
            fill(own, leaf, part, wide=True)
        else:
            compute_packed(by, own, leaf, part, None, False, False)
    return parts


def takes_norm(x: Any, weight: Any, bias: Any, norm: Any) -> bool:
    """Whether a product may normalise x itself; with which way, CHOICES knows."""
    plain = isinstance(weight, DeviceMatrix) and len(weight.ends) < 2 and bias is None
    row = len(x) == 1 and x.dtype == torch.float32 != NARROW and weight.shape[1] in NORMED_DEPTHS
    return plain and row and norm[0].data_ptr() % 16 == 0


def normed_linear(x: Any, weight: Any, norm: Any, gated: bool = False) -> Any:
    """linear(rms_norm(x)), or gated_linear of it, of one row."""
    columns, depth = weight.shape
    y = empty(x, columns // 2 if gated else columns, NARROW)
    way = CHOICES.of(Shape(1, y.shape[1], depth, gated, normed=True))
    return compute(way, x, weight.values, y, gated=gated, norm=norm)


def gated_linear(x: Any, weight: DeviceMatrix | PackedMatrix, bias: Any, norm: Any = None) -> Any:
    """swiglu(linear(x)): [T, K] -> [T, N / 2]."""
    if norm is not None and takes_norm(x, weight, bias, norm):
        return normed_linear(x, weight, norm, gated=True)
    x = x if norm is None else rms_norm(x, *norm)
    x, columns, depth = narrow(x), weight.shape[0] // 2, weight.shape[1]
    way = CHOICES.of(Shape(len(x), columns, depth, True, bias is not None, form=weight.form))
    return compute(way, x, operand(weight), empty(x, columns), bias, gated=True)


def narrow(x: Any) -> Any:
    """What enters a product is bf16: a stream of float32 that nothing has normalised is rounded once."""
    return x if x.dtype == NARROW else x.to(NARROW)


def operand(weight: DeviceMatrix | PackedMatrix | PackedLeaves) -> Any:
    """The tensor of plain numbers, or the packed matrix itself."""
    return weight.values if isinstance(weight, DeviceMatrix) else weight


def compute(
    way: Way,
    x: Any,
    w: Any,
    y: Any,
    bias: Any = None,
    added: bool = False,
    gated: bool = False,
    ends: tuple[int, ...] = (),
    norm: Any = None,
) -> Any:
    """Fill y, or add to it, by one way; with several `ends`, by leaves. w: `operand`; norm: of x, (weights, eps)."""
    if norm is not None:
        if isinstance(way, Streamed):
            return run_streamed(x, w, y, way, added, gated, norm)
        x = rms_norm(x, *norm)
    if len(ends) > 1:
        return compute_leaves(way, x, w, y, ends, bias, added)
    if isinstance(w, PackedMatrix):
        return compute_packed(way, x, w, y, bias, added, gated)
    if isinstance(way, Schedule):
        return run_chain(x, w, y, way, bias, added, gated)
    if isinstance(way, Persistent):
        return run_persistent(x, w, y, way)
    if isinstance(way, GatedGroups):
        return run_gated_groups(x, w, y, way)
    if isinstance(way, Streamed):
        return run_streamed(x, w, y, way, added, gated)
    if isinstance(way, StreamedRows):
        return run_streamed_rows(x, w, y, way, added, gated)
    if gated:
        return swiglu(library(x, w, empty(x, len(w))))
    return library(x, w, y, added)


def compute_leaves(way: Way, x: Any, w: Any, y: Any, ends: tuple[int, ...], bias: Any, added: bool) -> Any:
    if isinstance(way, WarpRow):
        return run_warp_row(x, w, y, way, bias, added)
    if isinstance(w, PackedLeaves):
        if way == EACH_LEAF:
            return fold_leaves(parts_of(x, w), y, bias, added)
        parts = parts_of(x, w, by_blocks(REFERENCE) if w.form == BLOCKS else REFERENCE)
        return added_up(list(parts), y, bias, added)
    if isinstance(way, Schedule):
        return run_parts(x, w, y, ends, way, bias, added)
    if isinstance(way, StreamedRows):
        return run_streamed_rows(x, w, y, way, added, False, ends)
    if isinstance(way, LeafGroups):
        return run_groups(x, w, y, ends, way, added)
    if isinstance(way, LeafTiles):
        return run_tiles(x, w, y, ends, way, added)
    if way == LIBRARY_LEAVES:
        return run_library(x, w, y, ends, bias, added)
    return reference(x, w, y, ends, REFERENCE, bias, added)


def compute_packed(way: Way, x: Any, weight: PackedMatrix, y: Any, bias: Any, added: bool, gated: bool) -> Any:
    """The same with a packed weight: from its codes, or from its numbers, stored for the while.

    A library rounds once, before the factor could come: its sums stay float32, and another kernel does the rest.
    """
    if isinstance(way, OneRow):
        return run_one_row(x, weight, y, way, bias, added, gated)
    if isinstance(way, WarpRow):
        return run_warp_row(x, weight, y, way, bias, added, gated)
    if isinstance(way, Relay):
        return run_relay(x, weight, y, way, added)
    if isinstance(way, Packed):
        return run_packed(x, weight, y, way, bias, added, gated)
    if isinstance(way, BlockGroups):
        w = unpacked(weight, turn=64 * way.passes if gated else 0)
        return run_block_groups(x, w, y, weight.scales, way, added, gated)
    w, factors = unpacked(weight), weight.factors_of_chain
    if isinstance(way, Schedule):
        return run_chain(x, w, y, way, bias, added, gated, factors, weight.scaled)
    if isinstance(way, Persistent):
        return run_persistent(x, w, y, way, factors, weight.scaled)
    return finish(library(x, w, empty(x, len(w), torch.float32)), factors, weight.scaled, bias, y, added, gated)


def library(x: Any, w: Any, y: Any, added: bool = False) -> Any:
    """cuBLAS with split-K forbidden; y += in float32 is one rounding of its accumulator plus y, as a chain's is."""
    if added:
        return torch.addmm(y, x, w.t(), out_dtype=torch.float32, out=y)
    if y.dtype == torch.float32:
        return torch.mm(x, w.t(), out_dtype=torch.float32, out=y)
    return torch.mm(x, w.t(), out=y)


def forbid_split_k() -> None:
    """Settings of torch that the library's bits rest on; `admit` proves that they work."""
    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    torch.backends.cuda.matmul.allow_tf32 = False
