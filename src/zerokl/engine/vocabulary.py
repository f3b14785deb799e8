"""The vocabulary as llguidance reads it: the bytes of each id, and which ids are no text.

Special tokens have no text, so a grammar's text never allows them; only the ids that end a generation are let through,
where the grammar is complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class Spelt(Protocol):
    """The part of a `Tokenizer` that a grammar needs."""

    @property
    def spells_bytes(self) -> bool:
        """Whether each id stands for bytes of its own, wherever it stands."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that have a meaning instead of a text."""

    def token_bytes(self, token: int) -> bytes:
        """b"" for an id without an entry."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """A text's ids."""


class Vocabulary:
    """Ids to bytes and back, without special tokens. What `LLTokenizer` asks of an object is spelt as it wants it."""

    def __init__(self, tokenizer: Spelt, vocab: int, eos_ids: Sequence[int]) -> None:
        self.tokens = [tokenizer.token_bytes(token) for token in range(vocab)]
        self.special_token_ids = sorted({*(token for token in tokenizer.special_ids if token < vocab), *eos_ids})
        self.eos_token_id = eos_ids[0]
        self.bos_token_id = None
        self.is_tokenizer_wrapper = True
        self._tokenizer = tokenizer
        special = {self.tokens[token].decode("utf-8", "replace") for token in self.special_token_ids} - {""}
        self._special = (
            re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True)))) if special else None
        )
        self._longest = max(map(len, self.tokens), default=1)
        self._ids: dict[bytes, int] = {}

    def library(self, eos_ids: Sequence[int]) -> LLTokenizer:
        """llguidance's own index of all this. Takes some tenths of a second."""
        from llguidance import LLTokenizer

        return LLTokenizer(self, n_vocab=len(self.tokens), eos_token=list(eos_ids))  # type: ignore[arg-type]

    def __call__(self, text: str) -> list[int]:
        """The ids that the model would see for a text that the grammar forces; their bytes are the text's exactly."""
        return [token for part in self._parts(text) for token in self._encode(part)]

    def _parts(self, text: str) -> Iterable[str]:
        """The text, cut so that no part holds a special token's name: as text it is only text."""
        start = 0
        while self._special and (match := self._special.search(text, start)):
            yield text[start : match.start() + 1]
            start = match.start() + 1
        yield text[start:]

    def _encode(self, text: str) -> list[int]:
        """As the tokenizer does it, if that gives the text back. One that begins every text with a space is shown a
        line's end first, which is then cut off again."""
        wanted = text.encode()
        if not wanted:
            return []
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        if self._joined(ids) == wanted:
            return ids
        ids = self._tokenizer.encode("\n" + text, add_special_tokens=False)
        for start in range(len(ids)):
            if self._joined(ids[start:]) == wanted:
                return ids[start:]
        return self._longest_first(wanted)

    def _joined(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self.tokens.__getitem__, ids))

    def _longest_first(self, content: bytes) -> list[int]:
        """Not what the model is used to, but the right bytes. A byte that no id spells is left out."""
        if not self._ids:
            special = set(self.special_token_ids)
            texts = ((token, content) for token, content in enumerate(self.tokens) if token not in special)
            self._ids = {content: token for token, content in texts if content}
        ids, start = [], 0
        while start < len(content):
            lengths = range(min(self._longest, len(content) - start), 0, -1)
            length = next((length for length in lengths if content[start : start + length] in self._ids), 0)
            if length:
                ids.append(self._ids[content[start : start + length]])
            start += max(length, 1)
        return ids
