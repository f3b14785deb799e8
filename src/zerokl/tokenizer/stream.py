"""Text of a growing output: each push returns what has become certain.

The text of an output is decode(last <= 5 prompt ids + output) without decode(those ids), so the prompt decides
whether a first space is kept. Invariant, tested: the joined deltas are `Tokenizer.text(output, prompt)`, however the
tokens came. A delta is held while it ends with U+FFFD, which the next token may turn into a character.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

WINDOW_TOKENS = 5
REPLACEMENT = "�"

Decode = Callable[[Sequence[int]], str]


class Context(Protocol):
    """What came before the ids that wait."""

    def text(self, ids: Sequence[int]) -> str:
        """The text that these ids add."""

    def passed(self, ids: Sequence[int]) -> None:
        """They are part of what came before now."""


class TextStream:
    """`push` ids as they come, `finish` once; both return new text."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        self._waiting.extend(ids)
        delta = self._context.text(self._waiting)
        return "" if delta.endswith(REPLACEMENT) else self._passed(delta)

    def finish(self) -> str:
        """What was held, as it stands."""
        return self._passed(self._context.text(self._waiting))

    def _passed(self, delta: str) -> str:
        self._context.passed(self._waiting)
        self._waiting = []
        return delta


class BytesContext:
    """For ids whose bytes are known: constant time per id. Text that ends between characters needs no context."""

    def __init__(self, bytes_of: Callable[[int], bytes], strips_first_space: bool) -> None:
        self._bytes_of = bytes_of
        self._at_start = strips_first_space

    def text(self, ids: Sequence[int]) -> str:
        content = b"".join(map(self._bytes_of, ids))
        return (content.removeprefix(b" ") if self._at_start else content).decode("utf-8", "replace")

    def passed(self, ids: Sequence[int]) -> None:
        self._at_start = self._at_start and not any(map(self._bytes_of, ids))


class WindowContext:
    """For decoders that do more than spell bytes: the library decodes, and a few recent ids give it the context."""

    def __init__(self, decode: Decode, prompt: Sequence[int]) -> None:
        self._decode = decode
        self._window = clean_window(decode, prompt)

    def text(self, ids: Sequence[int]) -> str:
        return self._decode([*self._window, *ids])[len(self._decode(self._window)) :]

    def passed(self, ids: Sequence[int]) -> None:
        self._window = clean_window(self._decode, [*self._window, *ids])


def clean_window(decode: Decode, ids: Sequence[int]) -> list[int]:
    """The longest of the last 5 ids whose text begins and ends between characters; [] if there is none."""
    for start in range(max(0, len(ids) - WINDOW_TOKENS), len(ids)):
        text = decode(ids[start:])
        if not text.startswith(REPLACEMENT) and not text.endswith(REPLACEMENT):
            return list(ids[start:])
    return []
