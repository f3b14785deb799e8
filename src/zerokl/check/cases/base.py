"""What a case is: one circumstance that must not matter, made to happen and seen to happen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can


@dataclass(frozen=True, slots=True)
class Cost:
    """Work that a case gives the server; the estimate is made of it."""

    prefill: float = 0
    """Prompt tokens computed."""
    alone: float = 0
    """Tokens generated one request at a time."""
    crowd: float = 0
    """Tokens generated in company."""
    answers: float = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.prefill + other.prefill,
            self.alone + other.alone,
            self.crowd + other.crowd,
            self.answers + other.answers,
        )

    def times(self, factor: float) -> Cost:
        return Cost(self.prefill * factor, self.alone * factor, self.crowd * factor, self.answers * factor)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    title: str
    """What is compared with what, for the table."""
    needs: frozenset[Can]
    run: Callable[[Lab], Awaitable[None]]
    cost: Callable[[Lab], Cost]
    quick: bool = True
    """Part of --quick."""
    looks_back: bool = False
    """Judges numbers that other cases brought, so they aren't counted again in the totals."""
