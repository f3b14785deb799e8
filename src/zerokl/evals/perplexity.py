"""Perplexity of a text, line by line or in pieces of so many characters, with the error of its mean over pieces."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from zerokl.errors import ConfigError
from zerokl.evals.asking import Asker


@dataclass(frozen=True, slots=True)
class Perplexity:
    tokens: int
    pieces: int
    nats: float
    """Mean negative logprob of a token."""
    error: float
    """Standard error of `nats`, from piece to piece (tokens of one piece are not independent); NaN for one piece."""

    @property
    def value(self) -> float:
        return math.exp(self.nats)


async def perplexity(asker: Asker, text: str, *, piece_chars: int = 4000, parallel: int = 8) -> Perplexity:
    """Every piece starts anew: its first token isn't scored and its early ones have little before them."""
    pieces = [text[at : at + piece_chars] for at in range(0, len(text), piece_chars)]
    if not text.strip():
        raise ConfigError("there is no text")
    places = asyncio.Semaphore(parallel)

    async def score(piece: str) -> list[float]:
        async with places:
            return await asker.score(piece, "")

    if len(pieces) > 1 and len(pieces[-1]) < piece_chars // 2:
        pieces.pop()  # too short to count like the others
    return summarise(await asyncio.gather(*map(score, pieces)))


def summarise(pieces: Sequence[Sequence[float]]) -> Perplexity:
    """The mean over all tokens is a ratio of sums; its error is the ratio estimator's."""
    tokens = sum(map(len, pieces))
    nats = -math.fsum(value for piece in pieces for value in piece) / tokens
    if len(pieces) < 2:
        return Perplexity(tokens, len(pieces), nats, math.nan)
    residuals = [-math.fsum(piece) - nats * len(piece) for piece in pieces]
    spread = math.fsum(one * one for one in residuals) * len(pieces) / (len(pieces) - 1)
    return Perplexity(tokens, len(pieces), nats, math.sqrt(spread) / tokens)
