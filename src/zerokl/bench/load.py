"""The requests of a serving benchmark: how long they are, what they say, when they come. All from one seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father"
)
WORDS = TEXT.split()
"""Short common words: about one token each for most tokenizers. The server's own count is what is reported."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    prompt: str | list[int]
    max_tokens: int
    at: float
    """Seconds after the start."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a benchmark asks for."""

    requests: int = 200
    input_tokens: int = 512
    output_tokens: int = 128
    shape: str = "random"
    """`fixed`: all alike; `random`: from half of the length to one and a half; `chat`: as people talk, most short and
    some very long (log-normal around the given medians)."""
    rate: float = 0.0
    """Requests a second, arriving at random; 0: all at once."""
    shared: float = 0.0
    """The part of each prompt that all have in common, from its beginning."""
    ids: int = 0
    """Prompts as random token ids below this number, for servers that take them; 0: as words."""
    seed: int = 0


def requests_of(load: Load) -> list[Asked]:
    draw = random.Random(load.seed)
    common = words(draw, 1 << 16, load.ids)
    at, asked = 0.0, []
    for _ in range(load.requests):
        length, output = (length_of(draw, usual, load.shape) for usual in (load.input_tokens, load.output_tokens))
        begun = common[: int(length * load.shared)]
        parts = begun + words(draw, length - len(begun), load.ids)
        prompt = parts if load.ids else " ".join(map(str, parts))
        asked.append(Asked(prompt, output, at))  # type: ignore[arg-type]
        at += draw.expovariate(load.rate) if load.rate else 0.0
    return asked


def length_of(draw: random.Random, usual: int, shape: str) -> int:
    if shape == "random":
        return draw.randint(max(1, usual // 2), max(1, usual * 3 // 2))
    if shape == "chat":
        return max(1, min(usual * 16, round(draw.lognormvariate(0, 1) * usual)))
    return max(1, usual)


def words(draw: random.Random, count: int, ids: int) -> list[str] | list[int]:
    return [draw.randrange(ids) for _ in range(count)] if ids else draw.choices(WORDS, k=count)
