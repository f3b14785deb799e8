"""Tensor names: what any file may use."""

from __future__ import annotations

from pathlib import Path

from zerokl.checkpoints.files import fail

MAX_NAME_BYTES = 512


def check_tensor_name(path: Path, name: str) -> None:
    """Raise unless `name` is short printable text: it will stand in errors, logs and tables."""
    if not name or len(name) > MAX_NAME_BYTES or not name.isprintable():
        fail(path, f"a tensor has the absurd name {name[:40]!r} ({len(name)} characters)")
