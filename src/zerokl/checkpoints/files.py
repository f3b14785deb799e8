"""Reading files that may be hostile: mapped, size-limited, every failure one CheckpointError that names the file."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import orjson
from numpy.typing import NDArray

from zerokl.errors import CheckpointError

MAX_TEXT_BYTES = 256 * 2**20
"""Largest JSON or template file that is read. The largest real one, a tokenizer.json, has about 35 MB."""


def fail(path: Path, why: str, cause: BaseException | None = None) -> NoReturn:
    """Raise the one error of this package."""
    raise CheckpointError(f"{path}: {why}") from cause


def map_file(path: Path) -> mmap.mmap:
    """The file's bytes, mapped read-only. Pages are read when touched; arrays over the map keep it alive."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        fail(path, _reason(error), error)
    fail(path, "the file is empty")


def read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TEXT_BYTES + 1)
    except (OSError, ValueError) as error:
        fail(path, _reason(error), error)
    if len(content) > MAX_TEXT_BYTES:
        fail(path, f"larger than the limit of {MAX_TEXT_BYTES} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        fail(path, f"not UTF-8 text (byte {error.start})", error)


def read_json(path: Path) -> dict[str, Any]:
    return parse_json(path, read_text(path))


def parse_json(path: Path, text: str | bytes, what: str = "the file") -> dict[str, Any]:
    """The JSON object in `text`, which came from `path`."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        fail(path, f"{what} is not valid JSON: {error}", error)
    if not isinstance(value, dict):
        fail(path, f"{what} must be a JSON object, not {type(value).__name__}")
    return value


def view(mapped: mmap.mmap, offset: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """A read-only array over the map; copied only where its offset isn't a multiple of the item size."""
    count = 1
    for axis in shape:
        count *= axis
    array: NDArray[Any] = np.frombuffer(mapped, dtype, count, offset) if count else np.empty(0, dtype)
    return (array if array.flags.aligned else array.copy()).reshape(shape)


def forget(mapped: mmap.mmap, offset: int, num_bytes: int) -> None:
    """Let go of the pages of these bytes. Reading them again finds them in the system's cache."""
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    if num_bytes and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED, start, offset + num_bytes - start)


def _reason(error: BaseException) -> str:
    """The operating system's words, without the path and number that Python adds."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)
