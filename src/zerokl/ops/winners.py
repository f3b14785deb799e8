"""Schedules that `zerokl tune` found faster than the table's, and that ship with the package. No torch.

    {"sm90": {"measured_with": {...}, "winners": [{"rows": 1, "columns": 4096, "depth": 12288, "gated": false,
                                                   "schedule": [8, 32, 256, true, 4, 6]}, ...]}}

Six numbers are a `choices.Schedule`, five a `choices.Streamed`, four a `choices.StreamedRows`.

They are wishes: at start `triton/admit.py` compares each with the reference schedule on the machine itself, at every
bucket, and what gives other bits is not used, whoever measured it and with whichever compiler.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from zerokl.errors import EngineError

PATH = Path(__file__).with_name("winners.json")
FAMILY = "sm90"

Key = tuple[int, int, bool]
"""(columns, depth, gated)."""


@cache
def winners(path: Path = PATH, family: str = FAMILY) -> dict[Key, dict[int, tuple[Any, ...]]]:
    """{layer: {rows: schedule}}, rows rising. Raises EngineError for a file that isn't what it should be."""
    found: dict[Key, dict[int, tuple[Any, ...]]] = {}
    for one in entries(path, family):
        key = one["columns"], one["depth"], one["gated"]
        found.setdefault(key, {})[one["rows"]] = tuple(one["schedule"])
    return found


def entries(path: Path = PATH, family: str = FAMILY) -> list[Mapping[str, Any]]:
    """As the file has them, by rising rows. Raises EngineError likewise."""
    try:
        found: list[Mapping[str, Any]] = json.loads(path.read_text())[family]["winners"]
        for one in found:
            check(one)
        return sorted(found, key=lambda one: int(one["rows"]))
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(
            f"{path.name} of tuned kernels can't be read ({error}): tune again, or take it away"
        ) from error


def winner(rows: int, columns: int, depth: int, gated: bool, most: int) -> tuple[Any, ...] | None:
    """The schedule that won with the least number of rows that isn't below `rows`; None above `most`."""
    tuned = winners().get((columns, depth, gated), {})
    return next((schedule for count, schedule in tuned.items() if rows <= count <= most), None)


def check(entry: Mapping[str, Any]) -> None:
    """Raise ValueError for what can't be a winner."""
    given = entry["schedule"]
    if len(given) == 6:
        rows, columns, depth, switch, warps, stages = given
        powers = [rows, columns, depth, warps]
    elif len(given) == 4:
        columns, stages, _, switch = given
        powers, depth, warps, stages = [], 64, 0 if columns % 16 else 4, stages // 2
    else:
        columns, depth, stages, _, switch = given
        warps = columns // 16
        powers = [columns, depth]
    numbers = [entry["rows"], entry["columns"], entry["depth"], *(x for x in given if x is not switch)]
    if not all(type(x) is int and x > 0 for x in numbers) or {type(switch), type(entry["gated"])} != {bool}:
        raise ValueError(f"{dict(entry)} is no winner")
    if any(x & (x - 1) for x in powers) or depth < 64 or stages > 8 or not 0 < warps <= 16:
        raise ValueError(f"{given} is no schedule")


def written(measured_with: Mapping[str, str], found: Sequence[Mapping[str, Any]], family: str = FAMILY) -> str:
    """The file's text."""
    return json.dumps({family: {"measured_with": dict(measured_with), "winners": list(found)}}, indent=1) + "\n"
