"""Columns of logprobs from the wire as Python numbers, with the two API families' rules for minus infinity.

JSON has neither -inf nor NaN. A token that can't occur has logprob -inf: /generate prints the smallest float32,
/v1 prints -9999.0, and never null, because null means "no score here". NaN is a broken promise of the engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeVar

from zerokl.errors import EngineError
from zerokl.server.fields import message
from zerokl.types import Logprobs

NATIVE_FLOOR = -3.4028234663852886e38
OPENAI_FLOOR = -9999.0

Item = TypeVar("Item")
Pairs = list[tuple[int, float]]
"""(token id, logprob), highest first, ties by lower id."""


@dataclass(slots=True)
class Rows:
    """Logprobs of some positions in order. None: a position that has no score (the first of a prompt)."""

    chosen: list[float | None] = field(default_factory=list)
    top: list[Pairs | None] = field(default_factory=list)
    ids: list[list[float] | None] = field(default_factory=list)

    def extend_nulls(self, count: int) -> None:
        self.chosen += [None] * count
        self.top += [None] * count
        self.ids += [None] * count

    def extend(self, block: Logprobs | None, floor: float) -> None:
        """Append the block's rows. Raises EngineError at a NaN."""
        if block is None:
            return
        self.chosen += floats(block.chosen, floor)
        tops = list(zip(memoryview(block.top_ids).cast("i").tolist(), floats(block.top, floor), strict=True))
        self.top += _cut(tops, block.num_top, block.rows)
        self.ids += _cut(floats(block.ids, floor), block.num_ids, block.rows)


def floats(column: bytes, floor: float) -> list[float]:
    """A float32 column widened to float64, so that the shortest double is printed; -inf becomes the floor."""
    values: list[float] = [*memoryview(column).cast("f")]
    if any(map(math.isnan, values)):
        raise EngineError(message("nan"))
    if -math.inf in values:
        return [floor if value == -math.inf else value for value in values]
    return values


def _cut(values: list[Item], width: int, rows: int) -> list[list[Item]]:
    return [values[row * width : (row + 1) * width] for row in range(rows)]
