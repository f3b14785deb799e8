"""Files that a command writes."""

from __future__ import annotations

from pathlib import Path


def write_named(path: Path, content: bytes) -> None:
    """As `write_bytes`, but every OSError names the file: a full disk's names none, and commands write several."""
    try:
        path.write_bytes(content)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
