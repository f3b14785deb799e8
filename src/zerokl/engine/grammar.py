"""Grammars: which ids may come next, as a function of the output so far and of nothing else.

    intake ──▶ GrammarMask ── compile, off the loop ──▶ scheduler: mask of each draw ──▶ Segment.mask ──▶ sampler
                    └── too complex after n tokens ──▶ the request's text ends there, as an error

Each request has a matcher of its own; what others ask, and in which order, can't show. Raw logprobs never see a mask.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zerokl.engine.grammar_source import source_of
from zerokl.engine.vocabulary import Spelt, Vocabulary
from zerokl.errors import InvalidRequest
from zerokl.wire.messages import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_COMPILED = 64
MAX_LEXER_STATES = 50_000
"""A state takes 1 to 2 kB."""
MAX_EXPRESSIONS = 400_000
"""Before the first token. An enum of 20,000 words needs 250,000. A million, the library's own limit, hold the loop up
for 1.4 s where a small regex grows to that."""
SHOWN_CHARS = 300


class Grammars:
    """Compiles grammars for one vocabulary. Nothing is loaded before the first. Safe to call from any thread."""

    def __init__(self, tokenizer: Spelt, vocab: int, eos_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._eos_ids = sorted(eos_ids)
        self._lock = threading.Lock()
        self._library: LLTokenizer | None = None
        self._compiled: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        """Matchers that have seen nothing yet; requests work on copies, which share nothing."""

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """A matcher before its first token. Raises InvalidRequest for a grammar that does not compile."""
        key = grammar.kind, grammar.source
        with self._lock:
            fresh = self._compiled.get(key)
        if fresh is None:
            fresh = self._compile(grammar)
            with self._lock:
                self._compiled[key] = fresh
                if len(self._compiled) > MAX_COMPILED:
                    self._compiled.popitem(last=False)
        return fresh.deep_copy()

    def _compile(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher

        library = self._vocabulary(grammar.kind)
        try:
            source = source_of(grammar.kind, grammar.source)
        except ValueError as error:
            raise refused(grammar.kind, str(error)) from None
        matcher = LLMatcher(library, source, log_level=0, limits=limits())
        if not matcher.is_error():
            matcher.compute_bitmask()  # the dearest one, on which copies build: nobody else waits for it here
        if matcher.is_error():
            raise refused(grammar.kind, matcher.get_error())
        return matcher

    def _vocabulary(self, kind: str) -> LLTokenizer:
        if not self._tokenizer.spells_bytes:
            raise refused(kind, "this model's tokens have no bytes of their own")
        if not self._eos_ids:
            raise refused(kind, "this model has no token that ends a generation")
        with self._lock:
            if self._library is None:
                vocabulary = Vocabulary(self._tokenizer, self._vocab, self._eos_ids)
                self._library = vocabulary.library(self._eos_ids)
            return self._library


class GrammarMask:
    """One request's grammar: a `scheduler.MaskSource`, once it is compiled."""

    def __init__(self, grammars: Grammars, grammar: Grammar, stop_ids: frozenset[int], min_new_tokens: int = 0) -> None:
        self.failure = ""
        """Why it can't go on."""
        self.failed_after = -1
        """With how many outputs; what is drawn from then on is not of the grammar."""
        self._grammars = grammars
        self._grammar = grammar
        self._stop_ids = stop_ids
        self._min_new_tokens = min_new_tokens
        self._matcher: Any = None
        self._taken = 0
        self._mask: tuple[int, bytes | None] = (-1, None)

    def compile(self) -> None:
        """Raises InvalidRequest if it doesn't; takes up to a second, so not on the loop."""
        self._matcher = self._grammars.matcher(self._grammar)

    def __call__(self, outputs: Sequence[int]) -> bytes | None:
        """Which ids may follow these outputs. Outputs only grow; to ask twice is free."""
        if self._mask[0] != len(outputs):
            self._mask = len(outputs), self._next_mask(outputs)
        return self._mask[1]

    def _next_mask(self, outputs: Sequence[int]) -> bytes | None:
        if not self.failure:
            self._matcher.consume_tokens(list(outputs[self._taken :]))
            self._taken = len(outputs)
            mask: bytes = b"" if self._matcher.is_error() else self._matcher.compute_bitmask()
            if any(mask) and not self._matcher.is_error():
                return mask if len(outputs) >= self._min_new_tokens else without(mask, self._stop_ids)
            self.failure = f"{self._grammar.kind} can't go on: {shown(self._matcher.get_error()) or 'a dead end'}"
            self.failed_after = len(outputs)
        return None


def limits() -> LLParserLimits:
    """The library's own, but for memory; none depends on time or on other requests."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=MAX_LEXER_STATES, initial_lexer_fuel=MAX_EXPRESSIONS, verbose_errors=False)


def without(mask: bytes, ids: frozenset[int]) -> bytes:
    """The mask less these ids; as it was, if nothing were left."""
    less = bytearray(mask)
    for token in ids:
        less[token // 8] &= ~(1 << token % 8)
    return bytes(less) if any(less) else mask


def refused(kind: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{kind} is not usable: {shown(why)}", param=kind)


def shown(why: str) -> str:
    """The library's words on one line, and not at any length."""
    line = " ".join(why.split())
    return line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "..."
