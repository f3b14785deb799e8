"""Which bytes a vocabulary entry stands for, where the tokenizer's decoder is only a spelling of bytes.

    byte-level      "Ġthe"  -> b" the"         every byte is one of 256 printable letters (GPT-2's)
    SentencePiece   "▁the"  -> b" the"         "▁" is a space, "<0xE4>" is the byte E4

Then a text is its tokens' bytes read as UTF-8, an invalid sequence as U+FFFD, and decoding token by token costs
microseconds and can't depend on how the tokens were grouped.
"""

from __future__ import annotations

import json
import re
from typing import Literal

from msgspec import Struct

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Spelling(Struct, frozen=True):
    """How entries spell bytes."""

    kind: Literal["byte_level", "sentencepiece"]
    strips_first_space: bool = False
    """A text doesn't start with the space that the encoder put before its first word."""

    def bytes_of(self, entry: str) -> bytes:
        if self.kind == "byte_level":
            try:
                return bytes(map(LETTER_BYTES.__getitem__, entry))
            except KeyError:  # an added token that is not spelt in letters
                return entry.encode()
        if match := BYTE_TOKEN.fullmatch(entry):
            return bytes.fromhex(match[1])
        return entry.replace("▁", " ").encode()


def spelling_of(decoder: str | None) -> Spelling | None:
    """The spelling that a decoder of the `tokenizers` library undoes, given in JSON; None if it does anything else."""
    if decoder is None:
        return None
    step = json.loads(decoder)
    if step.get("type") == "ByteLevel":
        return Spelling("byte_level")
    steps = step.get("decoders") if step.get("type") == "Sequence" else None
    if not steps or [s["type"] for s in steps[:3]] != ["Replace", "ByteFallback", "Fuse"]:
        return None
    if steps[0].get("pattern") != {"String": "▁"} or steps[0].get("content") != " ":
        return None
    if len(steps) == 3:
        return Spelling("sentencepiece")
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return Spelling("sentencepiece", strips_first_space=True) if steps[3:] == [strip] else None


def _letter_bytes() -> dict[str, int]:
    """Printable Latin-1 spells itself; the other bytes are U+0100 and on, in order."""
    own = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + i): byte for i, byte in enumerate(others)}


LETTER_BYTES = _letter_bytes()
