"""Stop strings and stop patterns over a text that grows: which match completes first, and how much must be held back.

    text      T h e   e n d . \\n U s e r
                          held ─┴────┤       "\\nUs" may still become "\\nUser:", so it can't be sent yet

The match that completes earliest wins; of those that complete at one character, the first of the list (strings before
patterns). Only text can match: a special token that is skipped has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from zerokl.engine.pattern import Pattern, PatternMatcher


class Match(Struct, frozen=True):
    """`matched` as the client wrote it; it covers characters [start, end) of the text."""

    matched: str
    start: int
    end: int


class Stops:
    """All that may end one request's text."""

    __slots__ = ("_matchers", "_position", "_sources")

    def __init__(self, strings: Sequence[str] = (), patterns: Sequence[Pattern] = ()) -> None:
        self._sources = [*strings, *(pattern.source for pattern in patterns)]
        self._matchers: list[StringMatcher | PatternMatcher] = [
            *(StringMatcher(string) for string in strings),
            *(PatternMatcher(pattern) for pattern in patterns),
        ]
        self._position = 0

    @property
    def held(self) -> int:
        """How many of the last characters may still become a match."""
        return max((matcher.held for matcher in self._matchers), default=0)

    def push(self, text: str, counts: bool = True) -> Match | None:
        """Take more text; the match that completes earliest in it. `counts` False: matches are passed over."""
        if not self._matchers:
            return None
        for char in text:
            self._position += 1
            lengths = [matcher.push(char) for matcher in self._matchers]
            if counts and any(lengths):
                index, length = next((index, length) for index, length in enumerate(lengths) if length)
                return Match(self._sources[index], self._position - length, self._position)
        return None


class StringMatcher:
    """Knuth, Morris and Pratt: one string, one character at a time, amortised constant."""

    __slots__ = ("_fallback", "_string", "held")

    def __init__(self, string: str) -> None:
        self._string = string
        self._fallback = fallbacks(string)
        self.held = 0
        """Length of the longest beginning of the string that the text ends with, the whole string excepted."""

    def push(self, char: str) -> int:
        """Take a character; the length of the match that it completes, or 0."""
        held = self.held
        while held and self._string[held] != char:
            held = self._fallback[held - 1]
        if self._string[held] == char:
            held += 1
        complete = held == len(self._string)
        self.held = self._fallback[held - 1] if complete else held
        return len(self._string) if complete else 0


def fallbacks(string: str) -> list[int]:
    """For each beginning of the string: the length of its longest proper beginning that is also its end."""
    lengths = [0] * len(string)
    length = 0
    for index in range(1, len(string)):
        while length and string[index] != string[length]:
            length = lengths[length - 1]
        if string[index] == string[length]:
            length += 1
        lengths[index] = length
    return lengths
