"""GGUF files: the container. What its keys and tensor names mean for a model is `gguf_model.py`'s.

    magic, version │ counts │ metadata: key, type, value │ tensors: name, axes, type, offset │ padding │ data

Every count and length is checked against the bytes that are left before anything is read or made, so memory stays
within a small multiple of the file's metadata.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from zerokl import _native
from zerokl.checkpoints.files import fail, forget, map_file, view
from zerokl.checkpoints.names import check_tensor_name
from zerokl.checkpoints.quantised import LAYOUTS, dequantise
from zerokl.checkpoints.view import Array, Tensor
from zerokl.errors import UnsupportedModel
from zerokl.quant import BLOCK_TYPES, Blocks

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS, MAX_TENSORS, MAX_ITEMS, MAX_AXES = 1 << 16, 1 << 20, 1 << 24, 4
SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
STRING, ARRAY = 8, 9
PLAIN = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
# fmt: off
TYPE_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}
# fmt: on
"""Those met in models; a type that isn't read is named in the error."""


@dataclass(frozen=True)
class Gguf:
    """A parsed file: metadata (numbers, strings, `Strings`, numpy arrays) and tensors by their GGUF names."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


def read_gguf(path: Path) -> Gguf:
    cursor = Cursor(path, map_file(path))
    num_tensors, num_keys = _counts(cursor)
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string()
        if key in metadata:
            fail(path, f"metadata key {key[:80]!r} stands twice")
        metadata[key] = cursor.value(cursor.number("<I", 4))
    infos = [_tensor_info(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        fail(path, f"general.alignment is {alignment!r:.40}, not a power of two up to 2^20")
    start = -(-cursor.offset // alignment) * alignment
    return Gguf(path, metadata, _place(path, cursor.mapped, start, alignment, infos))


class Cursor:
    """Reads forward through the mapped metadata; any step past the end is an error that names the file."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path, self.mapped, self.offset, self.size = path, mapped, 0, len(mapped)

    def take(self, num_bytes: int) -> bytes:
        start = self.claim(num_bytes)
        return self.mapped[start : start + num_bytes]

    def claim(self, num_bytes: int) -> int:
        """The offset of the next `num_bytes` bytes, which are then passed."""
        if num_bytes > self.size - self.offset:
            fail(self.path, f"truncated: {num_bytes} bytes wanted at byte {self.offset} of {self.size}")
        start = self.offset
        self.offset += num_bytes
        return start

    def number(self, format: str, num_bytes: int) -> int:
        return int(struct.unpack_from(format, self.mapped, self.claim(num_bytes))[0])

    def string(self) -> str:
        content = self.take(self.number("<Q", 8))
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            fail(self.path, f"a string before byte {self.offset} is not UTF-8", error)

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array(self.number("<I", 4), self.number("<Q", 8))
        if kind not in SCALARS:
            fail(self.path, f"unknown metadata type {kind} before byte {self.offset}")
        dtype = np.dtype(SCALARS[kind])
        return np.frombuffer(self.mapped, dtype, 1, self.claim(dtype.itemsize))[0].item()

    def array(self, kind: int, count: int) -> Any:
        if count > MAX_ITEMS:
            fail(self.path, f"an array of {count} items at byte {self.offset}; the limit is {MAX_ITEMS}")
        if kind == STRING:
            return self.strings(count)
        if kind not in SCALARS:
            fail(self.path, f"an array of metadata type {kind} before byte {self.offset}; none is known")
        dtype = np.dtype(SCALARS[kind])
        return view(self.mapped, self.claim(count * dtype.itemsize), dtype.str, (count,))

    def strings(self, count: int) -> Strings:
        """The token list of a model has 50,000 to 300,000 strings."""
        if count * 8 > self.size - self.offset:
            fail(self.path, f"truncated: {count} strings at byte {self.offset} of {self.size}")
        content, start = np.frombuffer(self.mapped, np.uint8), self.offset
        try:
            self.offset = _native.end_of_strings(content, start, count)
        except ValueError as error:
            fail(self.path, str(error), error)
        return Strings(partial(_native.strings, content, start, count))


class Strings:
    """A list of strings that were checked, and are made when they are asked for: a tokenizer's take 12 ms."""

    def __init__(self, make: Callable[[], list[str]]) -> None:
        self._make = make

    def list(self) -> list[str]:
        return self._make()


Info = tuple[str, tuple[int, ...], str, int]
"""(name, shape in numpy's order, type name, offset in the data)."""


def _counts(cursor: Cursor) -> tuple[int, int]:
    """(tensors, keys), after the magic and version."""
    path = cursor.path
    if cursor.size < 24 or cursor.take(4) != MAGIC:
        fail(path, "not a GGUF file")
    version = cursor.number("<I", 4)
    if version not in VERSIONS:
        big_endian = version and not version & 0xFFFF
        fail(path, "a big-endian GGUF file" if big_endian else f"GGUF version {version}; zerokl reads {VERSIONS}")
    num_tensors, num_keys = cursor.number("<Q", 8), cursor.number("<Q", 8)
    if num_keys > MAX_KEYS or num_tensors > MAX_TENSORS:
        fail(path, f"absurd counts: {num_tensors} tensors, {num_keys} metadata keys")
    return num_tensors, num_keys


def _tensor_info(cursor: Cursor) -> Info:
    path, name = cursor.path, cursor.string()
    check_tensor_name(path, name)
    num_axes = cursor.number("<I", 4)
    if not 1 <= num_axes <= MAX_AXES:
        fail(path, f"tensor {name!r} has {num_axes} axes")
    shape = tuple(cursor.number("<Q", 8) for _ in range(num_axes))[::-1]
    kind, offset = cursor.number("<I", 4), cursor.number("<Q", 8)
    if prod(shape) >= 1 << 62 or 0 in shape:
        fail(path, f"tensor {name!r} has the absurd shape {shape}")
    return name, shape, TYPE_NAMES.get(kind, f"type {kind}"), offset


def _place(path: Path, mapped: mmap.mmap, start: int, alignment: int, infos: list[Info]) -> dict[str, Tensor]:
    """Tensors over the mapped data; they lie inside the file, aligned, and apart from each other."""
    tensors: dict[str, Tensor] = {}
    end = 0
    for name, shape, kind, offset in sorted(infos, key=lambda info: info[3]):
        if name in tensors:
            fail(path, f"tensor {name!r} stands twice")
        if offset % alignment:
            fail(path, f"tensor {name!r} starts at {offset}, not a multiple of {alignment}")
        if offset < end:
            fail(path, f"tensor {name!r} overlaps the one before it")
        nbytes = _stored_bytes(path, name, shape, kind)
        end = offset + nbytes
        if start + end > len(mapped):
            fail(path, f"truncated: tensor {name!r} ends at byte {start + end} of {len(mapped)}")
        where = (mapped, start + offset, kind, shape, nbytes)
        tensors[name] = Tensor(
            name,
            shape,
            kind,
            nbytes,
            partial(_read, *where),
            partial(forget, mapped, start + offset, nbytes),
            partial(_packed, path, name, *where) if kind.lower() in BLOCK_TYPES and len(shape) == 2 else None,
        )
    return {info[0]: tensors[info[0]] for info in infos}


def unstacked(tensor: Tensor, names: Sequence[str]) -> list[Tensor]:
    """A tensor's parts along its first axis, one per name, each read on its own. Only for what `read_gguf` gave."""
    assert isinstance(tensor.read, partial)
    mapped, start, kind, shape, nbytes = tensor.read.args
    size = nbytes // shape[0]
    return [
        Tensor(name, shape[1:], kind, size, partial(_read, mapped, start + part * size, kind, shape[1:], size))
        for part, name in enumerate(names)
    ]


def _stored_bytes(path: Path, name: str, shape: tuple[int, ...], kind: str) -> int:
    if kind in PLAIN:
        return prod(shape) * np.dtype(PLAIN[kind]).itemsize
    if kind not in LAYOUTS:
        supported = [*PLAIN, *LAYOUTS]
        nearest = get_close_matches(kind, supported, n=1, cutoff=0)[0]
        raise UnsupportedModel(
            f"{path}: tensor {name!r} is {kind}, which isn't supported; supported: {', '.join(supported)}; "
            f"nearest: {nearest}"
        )
    layout = LAYOUTS[kind]
    if shape[-1] % layout.values:
        fail(path, f"tensor {name!r}: rows of {shape[-1]} values are not whole {kind} blocks of {layout.values}")
    return prod(shape) // layout.values * layout.block.itemsize


def _read(mapped: mmap.mmap, offset: int, kind: str, shape: tuple[int, ...], nbytes: int) -> Array:
    if kind in PLAIN:
        return view(mapped, offset, PLAIN[kind], shape)
    return dequantise(LAYOUTS[kind], np.frombuffer(mapped, np.uint8, nbytes, offset)).reshape(shape)


def _packed(
    path: Path, name: str, mapped: mmap.mmap, offset: int, kind: str, shape: tuple[int, ...], nbytes: int
) -> Blocks:
    """The rows of blocks as they lie there; a scale that isn't finite is an error."""
    layout = LAYOUTS[kind]
    stored = np.frombuffer(mapped, np.uint8, nbytes, offset)
    blocks = stored.view(layout.block)
    for scale in ("d", "m", "least"):
        if scale in (layout.block.names or ()) and not np.isfinite(blocks[scale]).all():
            fail(path, f"tensor {name!r} holds a scale that isn't finite")
    return Blocks(kind.lower(), stored.reshape(shape[0], -1), shape[1], partial(dequantise, layout))
