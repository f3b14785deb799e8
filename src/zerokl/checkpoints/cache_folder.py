"""Where downloads and digests are kept: $ZEROKL_CACHE, else $XDG_CACHE_HOME/zerokl, else ~/.cache/zerokl."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zerokl.config import environment

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    if chosen := environment("ZEROKL_CACHE"):
        return Path(chosen).expanduser()
    if xdg := environment("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "zerokl"
    return Path.home() / ".cache" / "zerokl"


def write_atomically(path: Path, content: bytes) -> None:
    """Make `path` hold `content`; another process sees the old file or the new one, never a part."""
    import tempfile  # 3 ms of each start

    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Hold the cache's lock of this name; another process (or thread) that wants it waits. Freed even by a crash."""
    path = cache_folder() / "locks" / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another process that fetches the same files")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
