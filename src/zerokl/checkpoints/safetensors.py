"""Safetensors files: one, or shards with an index. The header is checked in full before any tensor is offered.

u64 n │ n bytes of JSON: name -> {dtype, shape, data_offsets} │ data, without gaps or overlaps
"""

from __future__ import annotations

from functools import partial
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from zerokl.checkpoints.files import fail, forget, map_file, parse_json, read_json, view
from zerokl.checkpoints.names import check_tensor_name
from zerokl.checkpoints.view import Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER_BYTES = 100 * 2**20
"""The limit of the format's own library."""

ITEM_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2,
              "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 8}  # fmt: skip
ARRAY_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "U8": "u1", "I8": "i1", "F8_E4M3": "u1", "BOOL": "?",
               "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8",
               "U64": "<u8", "F64": "<f8"}  # fmt: skip
"""F8_E4M3 as its bits: numpy has no such type. Other small floats are not read."""


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in the order of their names."""
    if (folder / INDEX).exists():
        return [folder / name for name in sorted(set(_weight_map(folder / INDEX).values()))]
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(found) == 1:
        return [folder / found[0]]
    if found:
        fail(folder, f"{len(found)} safetensors files but no {INDEX} that says what is in which")
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        fail(folder, "holds pickled weights only; zerokl never reads pickle: convert them to safetensors")
    return fail(folder, f"no weights: neither {SINGLE} nor {INDEX}")


def read_folder(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder by name; each stands in exactly the shard that the index names."""
    tensors: dict[str, Tensor] = {}
    homes: dict[str, str] = {}
    for path in weight_files(folder):
        for name, tensor in read_file(path).items():
            if name in homes:
                fail(path, f"tensor {name!r} is also in {homes[name]}")
            homes[name], tensors[name] = path.name, tensor
    if (folder / INDEX).exists():
        _compare(folder / INDEX, _weight_map(folder / INDEX), homes)
    return tensors


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file, by name, in the order of their data."""
    mapped = map_file(path)
    size = len(mapped)
    header_bytes = int.from_bytes(mapped[:8], "little")
    if size < 8 or header_bytes > min(size - 8, MAX_HEADER_BYTES):
        fail(path, f"truncated or not safetensors: a header of {header_bytes} bytes in a file of {size}")
    header = parse_json(path, mapped[8 : 8 + header_bytes], "the header")
    header.pop("__metadata__", None)
    start = 8 + header_bytes
    entries = sorted(((_entry(path, name, entry), name) for name, entry in header.items()), key=lambda item: item[0][2])
    end, tensors = 0, {}
    for (dtype, shape, begin, stop), name in entries:
        if begin != end:
            fail(path, f"tensor {name!r} starts at byte {begin} of the data, but the one before it ends at {end}")
        end = stop
        read = partial(_read, path, name, mapped, start + begin, dtype, shape)
        drop = partial(forget, mapped, start + begin, stop - begin)
        tensors[name] = Tensor(name, shape, dtype, stop - begin, read, drop)
    if end != size - start:
        fail(path, f"the tensors need {end} bytes of data, but the file has {size - start} (truncated or too long)")
    return tensors


def _entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype, shape, begin, end) of one header entry; every field checked."""
    check_tensor_name(path, name)
    if not isinstance(entry, dict):
        fail(path, f"tensor {name!r}: its header entry is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        fail(path, f"tensor {name!r}: unknown dtype {str(dtype)[:40]!r}")
    if not _are_counts(shape) or len(shape) > 8:
        fail(path, f"tensor {name!r}: bad shape {str(shape)[:80]}")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        fail(path, f"tensor {name!r}: bad data_offsets {str(offsets)[:80]}")
    begin, end = offsets
    if prod(shape) * ITEM_BYTES[dtype] != end - begin:
        fail(path, f"tensor {name!r}: {dtype} {shape} doesn't fill its {end - begin} bytes")
    return dtype, tuple(shape), begin, end


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**62 for item in value)


def _read(path: Path, name: str, mapped: Any, offset: int, dtype: str, shape: tuple[int, ...]) -> Any:
    if dtype not in ARRAY_TYPES:
        fail(path, f"tensor {name!r} is {dtype}, which zerokl doesn't read yet")
    return view(mapped, offset, ARRAY_TYPES[dtype], shape)


def _weight_map(index: Path) -> dict[str, str]:
    """tensor name -> shard file name. A shard is a plain name in the same folder: no path can lead out of it."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        fail(index, "no weight_map in it")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or set(shard) & set("/\\:\0"):
            fail(
                index,
                f"tensor {name[:80]!r}: the shard {str(shard)[:80]!r} is not the plain name of a safetensors file",
            )
    return weight_map


def _compare(index: Path, said: dict[str, str], found: dict[str, str]) -> None:
    wrong = sorted(name for name in said.keys() | found.keys() if said.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        fail(
            index,
            f"{len(wrong)} tensors are not where the index says; the first, {name[:80]!r}: "
            f"index {said.get(name)}, shards {found.get(name)}",
        )
