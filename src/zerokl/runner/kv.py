"""The KV pools on the CPU: how many pages there are, and where they lie.

Keys are [P, K, D, page] and values [P, K, page, D], as `--kv-cache-dtype` says. A page's keys and values lie side by
side for all layers that have the same pages:

    slab    page 0: k of layer 0, v of layer 0, k of layer 1, v of layer 1, ..    page 1: the same    ..

A slab is an anonymous map: the system gives memory to a page (or to the 2 MB around it) when it is first written. So an
idle server stays small, and a busy one takes what its pages take: with an array per layer, the first token took 2 MB
in each of them.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from math import prod

import numpy as np

from zerokl import ops
from zerokl.config import Config
from zerokl.errors import ConfigError
from zerokl.models import Model
from zerokl.models.memory import Keys
from zerokl.runner.memory import available_memory
from zerokl.types import WindowPool

DEFAULT_SHARE = 4
"""Without an option, the pool may grow to a quarter of the memory that is free at start."""
DEFAULT_SEQUENCES = 16
"""... but to no more than this many sequences of full length need."""

LARGE_ARRAY = 32 << 20
"""Bytes from which on pages of 2 MB are asked for."""


NUMPY: dict[str, type[np.generic]] = {"float32": np.float32, "bfloat16": np.uint16, "fp8_e4m3": np.uint8}
"""numpy has no small floats: their bits."""
NAN_BITS = {"uint16": 0x7FC0, "uint8": 0x7F}


class KvPools:
    """Keys and values of every layer that has any. Only `ops.store_kv` writes to them."""

    def __init__(
        self,
        model: Model,
        num_pages: int,
        page_size: int,
        windows: Sequence[WindowPool] = (),
        *,
        fill: float | None = None,
    ) -> None:
        """`fill`: what unwritten slots hold (tests: NaN; narrower types hold only that). By default nothing is
        touched, and the system gives zeros.
        """
        pages: dict[int | None, int] = {None: num_pages}
        pages.update((pool.window, pool.num_pages) for pool in windows)
        self.specs = [layer.keys for layer in model.memory if layer.keys]
        self.slabs: dict[tuple[int | None, str], np.ndarray] = {}
        """By window and type."""
        views: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for kind in dict.fromkeys((spec.window, spec.dtype) for spec in self.specs):
            alike = {place: s for place, s in enumerate(self.specs) if (s.window, s.dtype) == kind}
            self.slabs[kind], pairs = side_by_side(list(alike.values()), pages[kind[0]], page_size)
            views.update(zip(alike, pairs, strict=True))
        self.keys, self.values = ([views[place][side] for place in range(len(self.specs))] for side in (0, 1))
        if fill is not None:
            for slab in self.slabs.values():
                slab.fill(fill if slab.dtype == np.float32 else NAN_BITS[slab.dtype.name])

    def layers(self, ragged: ops.Ragged, windows: Mapping[int | None, ops.Ragged] | None = None) -> list[ops.LayerKV]:
        """The view of each layer that has keys; `windows` has the step's shape for layers of each window."""
        shapes = {**(windows or {}), None: ragged}
        return [
            ops.LayerKV(k, v, shapes[spec.window], spec.sharing, spec.scales)
            for k, v, spec in zip(self.keys, self.values, self.specs, strict=True)
        ]


def side_by_side(
    specs: Sequence[Keys], num_pages: int, page_size: int
) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """A slab for layers of one window and type, and each layer's keys and values in it."""
    widths = [spec.num_kv_heads * spec.head_size * page_size for spec in specs]
    slab = lazy_array((num_pages, 2 * sum(widths)), NUMPY[specs[0].dtype])
    pairs = []
    for spec, width, stop in zip(specs, widths, accumulate(widths), strict=True):
        start, heads, size = 2 * (stop - width), spec.num_kv_heads, spec.head_size
        keys, values = slab[:, start : start + width], slab[:, start + width : start + 2 * width]
        keys = keys.reshape(num_pages, heads, size, page_size)
        pairs.append((keys, values.reshape(num_pages, heads, page_size, size)))
    return slab, pairs


def bytes_per_token(model: Model, window: int | None = None) -> int:
    """Of keys and values, in all layers that see every key, or in those that see this window."""
    kinds = (layer.keys for layer in model.memory)
    return sum(keys.bytes_per_token for keys in kinds if keys and keys.window == window)


def pages_that_fit(model: Model, config: Config) -> int:
    """The pool's size: `max_total_tokens` if given, else what the machine and the context length suggest.

    Raises ConfigError if not even one page fits.
    """
    tokens = config.max_total_tokens or tokens_that_fit(model, config.mem_fraction_static, free_for(model))
    if tokens < config.page_size:
        raise ConfigError(
            f"the cache pool would have {tokens} token slots, less than one page of {config.page_size}: "
            "raise --max-total-tokens, lower --page-size or free memory"
        )
    return tokens // config.page_size


def free_for(model: Model) -> int:
    """The memory that a rank may take, beside the others on this machine."""
    return available_memory() // model.team.local_size


def tokens_that_fit(model: Model, fraction: float | None, free_bytes: int) -> int:
    """Slots for the memory that is free after the weights were loaded.

    With a `fraction`, it is of all that weights and pool could have together, the weights having theirs already.
    Without, the pool takes its default share, and no more than the default number of long sequences needs.
    """
    if fraction is not None:
        pool_bytes = fraction * (free_bytes + model.weight_bytes) - model.weight_bytes
        return max(0, int(pool_bytes)) // bytes_per_token(model)
    return min(free_bytes // DEFAULT_SHARE // bytes_per_token(model), model.context_length * DEFAULT_SEQUENCES)


def lazy_array(shape: tuple[int, ...], dtype: type[np.generic] = np.float32) -> np.ndarray:
    """Zeros that cost no memory until they are written: of a small array 4 KB at a time, of a large one 2 MB.

    Sequences lie all over a large pool: with small pages a decode of 16 took 10 % longer, finding where they are.
    """
    if not prod(shape):
        return np.zeros(shape, dtype)  # a map can't be empty
    size = np.dtype(dtype).itemsize * prod(shape)
    if sys.platform != "linux":
        return np.frombuffer(mmap.mmap(-1, size), dtype).reshape(shape)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # np.zeros would ask for the same kind of pages, whatever the size.
    with suppress(OSError):  # a wish: where it is refused, pages are small and all is well
        block.madvise(mmap.MADV_HUGEPAGE if size >= LARGE_ARRAY else mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(block, dtype).reshape(shape)
