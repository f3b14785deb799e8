"""Prompts as token ids: natural text (peaked distributions), random ids (flat ones, where ties and divergences are
likely), repeated patterns (long-range attention). All of them follow from the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib import resources
from typing import Literal

Style = Literal["natural", "random", "repeated"]
STYLES: tuple[Style, ...] = ("natural", "random", "repeated")


def corpus_text() -> str:
    """The text that comes with the package: public-domain English, and our own with digits, code and scripts."""
    folder = resources.files("zerokl.check") / "corpus"
    return "\n".join(
        entry.read_text("utf-8")
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name[-4:] == ".txt"
    )


class Prompts:
    """Prompts of any length. Two prompts of different `number` share no prefix to speak of."""

    def __init__(self, seed: int, corpus: Sequence[int] | None, largest_id: int) -> None:
        self._seed = seed
        self.corpus = list(corpus or ())
        self._largest_id = largest_id

    @property
    def styles(self) -> tuple[Style, ...]:
        return STYLES if self.corpus else STYLES[1:]

    def prompt(self, length: int, number: int, style: Style | None = None) -> tuple[int, ...]:
        """`length` ids. Without a style, the styles take turns by number."""
        style = style or self.styles[number % len(self.styles)]
        if style == "natural" and self.corpus:
            return self._natural(length, number)
        draw = random.Random(f"{self._seed}/{style}/{number}")
        if style == "repeated":
            pattern = [draw.randint(0, self._largest_id) for _ in range(draw.randint(3, 11))]
            return tuple((pattern * (length // len(pattern) + 1))[:length])
        return tuple(draw.randint(0, self._largest_id) for _ in range(length))

    def _natural(self, length: int, number: int) -> tuple[int, ...]:
        """A window of the corpus, starting at a place of its own and going round."""
        draw = random.Random(f"{self._seed}/natural/{number}")
        start = draw.randrange(len(self.corpus))
        repeats = (start + length) // len(self.corpus) + 1
        return tuple((self.corpus * repeats)[start : start + length])
