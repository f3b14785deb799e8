"""sha256 of files, remembered by path, size and time of change, so that a large model is read for it only once."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import orjson

from zerokl.checkpoints.cache_folder import cache_folder, write_atomically
from zerokl.checkpoints.files import fail


def files_digest(paths: Iterable[Path]) -> str:
    """One digest of several files' contents, in the given order; their names and places don't matter."""
    whole = hashlib.sha256(b"zerokl files 1")
    for path in paths:
        whole.update(bytes.fromhex(file_digest(path)))
    return whole.hexdigest()


def file_digest(path: Path) -> str:
    """Hex sha256 of one file: remembered, or read and remembered. A cache that can't be written is no error."""
    path = path.resolve()
    try:
        status = path.stat()
    except OSError as error:
        fail(path, str(error.strerror).lower(), error)
    key: list[str | int] = [str(path), status.st_size, status.st_mtime_ns]
    note = cache_folder() / "digests" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"
    if known := _recall(note, key):
        return known
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with contextlib.suppress(OSError):
        write_atomically(note, orjson.dumps({"key": key, "sha256": digest}))
    return digest


def _recall(note: Path, key: list[str | int]) -> str | None:
    try:
        known = orjson.loads(note.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    if not isinstance(known, dict) or known.get("key") != key:
        return None
    digest = known.get("sha256")
    return digest if isinstance(digest, str) and len(digest) == 64 else None
