"""Text to ids, ids to text, and what each id looks like in an answer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from zerokl import _native
from zerokl.errors import CheckpointError, InvalidRequest
from zerokl.tokenizer.run_folder import read_run_folder, special_json
from zerokl.tokenizer.spelling import spelling_of
from zerokl.tokenizer.stream import REPLACEMENT, WINDOW_TOKENS, BytesContext, TextStream, WindowContext
from zerokl.types import TokenizerFiles

if TYPE_CHECKING:
    from zerokl.tokenizer.chat import ChatTemplate


class Tokenizer:
    """One model's tokenizer, special ids and chat template. Immutable; safe to share between threads."""

    def __init__(self, files: TokenizerFiles) -> None:
        """Raises CheckpointError if the `tokenizers` library refuses the file."""
        self.special = files.special
        self.chat_template = files.chat_template
        parts = (files.tokenizer_json, files.chat_template, special_json(files.special))
        self.digest = hashlib.sha256(b"".join(hashlib.sha256(part.encode()).digest() for part in parts)).hexdigest()
        """Hex sha256 of all that decides ids, text and prompts; part of the fingerprint."""
        self.vocab_size = files.special.vocab_size
        """Ids that the model knows; the tokenizer's own may be fewer."""
        self._library = _library(files.tokenizer_json)
        self._spelling = spelling_of(self._library.decoder())
        self.special_ids = frozenset(self._library.special_ids())
        """Ids that have a meaning instead of a text."""
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of a run folder."""
        return cls(read_run_folder(Path(folder)))

    @property
    def spells_bytes(self) -> bool:
        """Whether each id stands for bytes of its own, wherever it stands."""
        return self._spelling is not None

    @cached_property
    def chat(self) -> ChatTemplate:
        """Jinja is loaded by the first who asks: an engine never does."""
        from zerokl.tokenizer.chat import ChatTemplate

        return ChatTemplate(self.chat_template, self.special)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text. `add_special_tokens` for a plain text, not for a rendered chat, whose template writes BOS."""
        try:
            return self._library.encode(text, add_special_tokens)
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the text holds a lone surrogate at {error.start}, which is not a character"
            ) from error

    def encode_chat(self, messages: Sequence[dict[str, object]], **options: object) -> list[int]:
        """Ids of a chat; `options` as in `ChatTemplate.render`."""
        return self.encode(self.chat.render(messages, **options), add_special_tokens=False)  # type: ignore[arg-type]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids that stand alone. An invalid byte sequence becomes U+FFFD; ids without an entry vanish."""
        return self.text(ids, skip_special_tokens=skip_special_tokens)

    def text(self, output: Sequence[int], prompt: Sequence[int] = (), *, skip_special_tokens: bool = True) -> str:
        """Text of an output that follows a prompt: what `stream` gives in pieces."""
        stream = self.stream(prompt, skip_special_tokens=skip_special_tokens)
        return stream.push(output) + stream.finish()

    def stream(self, prompt: Sequence[int] = (), *, skip_special_tokens: bool = True) -> TextStream:
        """The text of an output that follows `prompt`, as its ids come."""
        if self._spelling is None:
            return TextStream(WindowContext(lambda ids: self._decode(ids, skip_special_tokens), prompt))
        bytes_of = self._visible_bytes if skip_special_tokens else self.token_bytes
        context = BytesContext(bytes_of, self._spelling.strips_first_space)
        context.passed(prompt[-WINDOW_TOKENS:])
        return TextStream(context)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that an id stands for, possibly part of a character; b"" for an id without an entry."""
        known = self._bytes.get(token)
        if known is None:
            entry = self._library.entry(token)
            if entry is None:
                known = b""
            elif self._spelling is None:
                known = self._decode([token], False).encode()
            else:
                known = self._spelling.bytes_of(entry)
            self._bytes[token] = known
        return known

    def token_text(self, token: int) -> str:
        r"""How an id is named in logprobs: its text, or `bytes:\xe4\xbd` where its bytes are no text by themselves."""
        content = self.token_bytes(token)
        text = content.decode("utf-8", "replace")
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content) if REPLACEMENT in text else text

    def token_id(self, entry: str) -> int | None:
        """The id of a vocabulary entry or added token as it is spelt in the file."""
        return self._library.id_of(entry)

    def _visible_bytes(self, token: int) -> bytes:
        return b"" if token in self.special_ids else self.token_bytes(token)

    def _decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self._library.decode(ids, skip_special_tokens)


def _library(tokenizer_json: str) -> _native.Tokenizer:
    try:
        return _native.Tokenizer(tokenizer_json)
    except ValueError as error:
        raise CheckpointError(f"tokenizer.json: {error}") from error
