"""A model in several GGUF files, NAME-00001-of-00003.gguf and so on: any of them opens all.

The first part has the metadata; each has its own tensors. Parts are looked for beside the one that was given, by names
made from its own, so no file can name another one elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path

from zerokl.checkpoints.files import fail
from zerokl.checkpoints.gguf import Gguf, read_gguf

NAME = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")
MAX_PARTS = 1000


def read_parts(path: Path) -> tuple[Gguf, list[Path]]:
    """The file, or the whole that it is a part of; and all files read, in order."""
    file = read_gguf(path)
    count = file.metadata.get("split.count", 1)
    if count in (0, 1):
        return file, [path]
    match = NAME.fullmatch(path.name)
    if type(count) is not int or not match or int(match["count"]) != count or count > MAX_PARTS:
        fail(path, f"one part of {count!r:.20}, whose name should end in -00001-of-{count!s:0>5.5}.gguf")
    paths = [path.with_name(f"{match['stem']}-{number + 1:05}-of-{count:05}.gguf") for number in range(count)]
    if missing := [part.name for part in paths if not part.exists()]:
        fail(path, f"{len(missing)} of {count} parts are missing, the first is {missing[0]}")
    return _joined([file if part == path else read_gguf(part) for part in paths]), paths


def _joined(parts: list[Gguf]) -> Gguf:
    first = parts[0]
    tensors = dict(first.tensors)
    for number, part in enumerate(parts):
        said = (part.metadata.get("split.no"), part.metadata.get("split.count"))
        if said != (number, len(parts)):
            fail(part.path, f"says it is part {said[0]!r:.20} of {said[1]!r:.20}, not {number} of {len(parts)}")
        if number and (twice := tensors.keys() & part.tensors.keys()):
            fail(part.path, f"tensor {min(twice)!r} is also in an earlier part")
        tensors |= part.tensors
    total = first.metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        fail(first.path, f"the parts hold {len(tensors)} tensors, not {total!r:.20}")
    return Gguf(first.path, first.metadata, tensors)
