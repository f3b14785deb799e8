"""5,000 texts, the same on every machine: the lists of `texts.py`, and pieces of all kinds at random."""

# ruff: noqa: E501 - a table of ranges
from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

from tests.tokenizer.texts import CODE, CONTROLS, EMOJI, NUMBERS, PROSE, RUNS, SCRIPTS, texts

COUNT = 5000
ALPHABETS = [
    (0x20, 0x7E), (0x00, 0x1F), (0x80, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F),
    (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F), (0x2070, 0x218F), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xE000, 0xE0FF), (0xFF00, 0xFFEF), (0x1F300, 0x1FAFF), (0x1D400, 0x1D7FF), (0x10000, 0x10FFFF),
]  # fmt: skip
"""Ranges of code points: scripts, controls, marks that combine, private use, everything."""
JOINTS = ["", " ", "  ", "\n", "\t", "\r\n", "'", ".", "\u00a0", "\u200d"]


@cache
def many_texts() -> tuple[str, ...]:
    """Each once. Only `Random.random` is drawn from, whose numbers Python promises to keep."""
    generator = random.Random(6)

    def below(count: int) -> int:
        return int(generator.random() * count)

    makers: list[Callable[[], str]] = [
        lambda: letters(below),
        lambda: mixture(below),
        lambda: cut(CODE, below),
        lambda: cut(PROSE, below),
        lambda: run(below),
    ]
    found = dict.fromkeys(texts())
    while len(found) < COUNT:
        found[makers[below(len(makers))]()] = None
    return tuple(found)


def letters(below: Callable[[int], int]) -> str:
    """Of one alphabet or two."""
    alphabets = [ALPHABETS[below(len(ALPHABETS))] for _ in range(1 + below(2))]
    return "".join(letter(alphabets[below(len(alphabets))], below) for _ in range(1 + below(40)))


def letter(alphabet: tuple[int, int], below: Callable[[int], int]) -> str:
    code = alphabet[0] + below(alphabet[1] - alphabet[0] + 1)
    return chr(0xFFFD if 0xD800 <= code <= 0xDFFF else code)


def mixture(below: Callable[[int], int]) -> str:
    """A few whole pieces of any kind."""
    kinds = (PROSE, NUMBERS, CODE, SCRIPTS, EMOJI, CONTROLS, RUNS)
    pieces = []
    for _ in range(2 + below(4)):
        kind = kinds[below(len(kinds))]
        pieces += [kind[below(len(kind))], JOINTS[below(len(JOINTS))]]
    return "".join(pieces)


def cut(kind: list[str], below: Callable[[int], int]) -> str:
    """Some lines from the middle of one to the middle of another."""
    text = "\n".join(kind[below(len(kind))] for _ in range(1 + below(3)))
    start = below(len(text))
    return text[start : start + 1 + below(120)]


def run(below: Callable[[int], int]) -> str:
    """One thing many times."""
    kinds = (
        NUMBERS,
        SCRIPTS,
        EMOJI,
        [" ", "\n", "\t", "a", "1", "'", "é", "你", "\u0301", "\x00", "ab", "12", " 1", "-_"],
    )
    kind = kinds[below(len(kinds))]
    return kind[below(len(kind))] * (1 + below(12)) + JOINTS[below(len(JOINTS))]
