"""The paged cache as one layer sees it, and the only write to its bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from zerokl import _native
from zerokl.errors import ShapeError, UnsupportedDtype
from zerokl.ops.device import gpu, on_gpu

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
Pages = NDArray[np.float32] | NDArray[np.uint16] | NDArray[np.uint8]
"""float32, the bits of bfloat16, or the codes of e4m3."""


class Ragged(Struct, frozen=True):
    """The shape of one step: T rows (tokens) of S segments, back to back.

        row_starts   [S+1]    segment s owns rows row_starts[s] .. row_starts[s + 1] - 1
        positions    [T]      absolute position of the row in its sequence; -1: a padding row, it sees nothing
        slots        [T]      where the row's own key and value go: page * page_size + offset; -1: nowhere
        page_table   [S, P]   page i of segment s holds its positions i * page_size .. (i + 1) * page_size - 1

    Entries of `page_table` past the segment's last position are never looked at.
    """

    positions: I32
    slots: I32
    row_starts: I32
    page_table: I32
    page_size: int
    work: Any = None
    """On the GPU, where these are tensors: `ops.work.Work`."""


class LayerKV(Struct, frozen=True):
    """One layer's keys and values, and this step's shape.

    Keys are stored transposed, `k [P, K, D, page]`, so that 16 neighbouring keys are one vector; values are
    `v [P, K, page, D]`: float32, bits of bfloat16 as uint16 or codes of e4m3 as uint8. Each page is C-contiguous, and
    pages are equally far apart in both: other layers' may lie between. All share them: only `store_kv` writes them.
    On the GPU both are `[P, K, 64, D]` bfloat16.
    """

    k: Pages
    v: Pages
    ragged: Ragged
    sharing: tuple[int, int] | None = None
    """(query heads per key head, how many of the first key head's aren't here), if key heads are shared unevenly: a
    rank that has some of a model's heads keeps every key head that they need."""
    scales: tuple[float, float] = (1.0, 1.0)
    """What keys and values are divided by before they are rounded to e4m3."""


def store_kv(kv: LayerKV, k: F32, v: F32) -> None:
    """Write this step's keys and values to their slots.

    Maths       k_pool[slot // page, :, :, slot % page] = k[t],  v_pool[slot // page, :, slot % page, :] = v[t]
    Shapes      k, v [T, K, D] f32; slots [T]; kv.k [P, K, D, page], kv.v [P, K, page, D]
    Rounding    float32: none, a copy. bfloat16: once. e4m3: x / scale in f32, then once, saturating at 448; attention
                reads code * scale, in f32
    Order       rows of one call must have distinct slots; slot -1 (padding) writes nothing
    Same bits   for every T, row position, page number
    Raises      ShapeError, UnsupportedDtype; EngineError for a slot outside the pool
    Oracle      ops/reference.py: store_kv
    """
    if on_gpu(k):
        gpu().store_kv(kv, k, v)
        return
    check_kv(kv)
    heads, size = kv.k.shape[1], kv.k.shape[2]
    rows = kv.ragged.slots.shape[0]
    for name, array in (("k", k), ("v", v)):
        check_array(name, array, np.float32, (rows, heads, size))
    if heads == 0:
        return
    _native.store_kv(kv.k, kv.v, kv.ragged.slots, k, v, kv.scales)


def check_kv(kv: LayerKV) -> None:
    """The pool and the step's shape fit each other, or ShapeError / UnsupportedDtype says what does not."""
    ragged = kv.ragged
    if kv.k.ndim != 4:
        raise ShapeError(f"keys must be [P, K, D, page], not {kv.k.shape}")
    pages, heads, size, page = kv.k.shape
    dtype = kv.k.dtype.type
    if dtype not in (np.float32, np.uint16, np.uint8):
        raise UnsupportedDtype(f"keys are float32, bits of bfloat16 or codes of e4m3, not {kv.k.dtype.name}")
    check_pages("kv.k", kv.k, dtype, (pages, heads, size, page))
    check_pages("kv.v", kv.v, dtype, (pages, heads, page, size))
    if kv.k.strides[0] != kv.v.strides[0]:
        raise ShapeError("pages of keys and of values are not equally far apart")
    if page != ragged.page_size:
        raise ShapeError(f"the pool's pages hold {page} slots, the step's {ragged.page_size}")
    rows, segments = ragged.positions.shape[0], ragged.row_starts.shape[0] - 1
    check_array("positions", ragged.positions, np.int32, (rows,))
    check_array("slots", ragged.slots, np.int32, (rows,))
    check_array("row_starts", ragged.row_starts, np.int32, (segments + 1,))
    check_array("page_table", ragged.page_table, np.int32, (segments, ragged.page_table.shape[-1]))


def check_pages(name: str, array: NDArray[np.generic], dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    """`array` has exactly this dtype and shape and each of its pages is C-contiguous."""
    check_array(name, array[:1], dtype, (min(1, shape[0]), *shape[1:]))
    if array.shape != shape:
        raise ShapeError(f"{name} must be {list(shape)}, not {list(array.shape)}")


def check_array(name: str, array: NDArray[np.generic], dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    """`array` has exactly this dtype and shape and is C-contiguous."""
    if array.dtype != dtype:
        raise UnsupportedDtype(f"{name} must be {np.dtype(dtype).name}, not {array.dtype.name}")
    if array.shape != shape or not array.flags.c_contiguous:
        how = "" if array.flags.c_contiguous else " (not contiguous)"
        raise ShapeError(f"{name} must be {list(shape)} and contiguous, not {list(array.shape)}{how}")
