"""Streamed text: the joined deltas are the whole text, whatever the tokens, their grouping and the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer.texts import texts
from tests.tokenizer.tokenizers import byte_level, metaspace, sentencepiece
from zerokl.tokenizer import Tokenizer
from zerokl.tokenizer.stream import REPLACEMENT, TextStream, WindowContext

TOKENIZERS = {
    "byte_level": byte_level(),
    "sentencepiece": sentencepiece(),
    "sentencepiece, keeps first space": sentencepiece(strips_first_space=False),
    "metaspace": metaspace(),
}
each_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())


def token_lists(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Random ids (mostly invalid UTF-8), ids of real texts cut anywhere, ids without an entry."""
    real = st.sampled_from(texts()).map(lambda text: tokenizer.encode(text)).flatmap(_slices)
    return st.one_of(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30), real)


def _slices(ids: list[int]) -> st.SearchStrategy[list[int]]:
    return st.tuples(st.integers(0, 8), st.integers(0, 30)).map(lambda cut: ids[cut[0] : cut[0] + cut[1]])


def groups(ids: list[int], data: st.DataObject) -> list[list[int]]:
    cuts = (
        sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
        if data.draw(st.booleans())
        else range(len(ids))
    )
    edges = [0, *cuts, len(ids)]
    return [ids[a:b] for a, b in pairwise(edges)]


def joined(stream: TextStream, pushes: Sequence[Sequence[int]]) -> str:
    deltas = [stream.push(ids) for ids in pushes]
    assert not any(delta.endswith(REPLACEMENT) for delta in deltas)
    return "".join(deltas) + stream.finish()


@each_tokenizer
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_joined_deltas_are_the_whole_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    output, prompt = data.draw(token_lists(tokenizer)), data.draw(token_lists(tokenizer))
    skip = data.draw(st.booleans())
    stream = tokenizer.stream(prompt, skip_special_tokens=skip)
    assert joined(stream, groups(output, data)) == tokenizer.text(output, prompt, skip_special_tokens=skip)


@pytest.mark.parametrize("tokenizer", [byte_level(), sentencepiece()], ids=["byte_level", "sentencepiece"])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_decode_is_the_librarys(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Always for byte-level; for SentencePiece unless a run of byte tokens is invalid, where the library gives up on
    the whole run although a stream may have shown its good part already.
    """
    ids, skip = data.draw(token_lists(tokenizer)), data.draw(st.booleans())
    library = tokenizer._decode(ids, skip)
    ours = tokenizer.decode(ids, skip_special_tokens=skip)
    if tokenizer is byte_level() or REPLACEMENT not in library + ours:
        assert ours == library


@pytest.mark.parametrize("tokenizer", [byte_level(), sentencepiece()], ids=["byte_level", "sentencepiece"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_bytes_and_window_give_the_same_deltas(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """The two ways to decode are each other's oracle, on text whose characters are whole."""
    text = data.draw(st.sampled_from(texts()))
    prompt = tokenizer.encode(data.draw(st.sampled_from(texts())))
    output = tokenizer.encode(text)
    by_window = TextStream(WindowContext(lambda ids: tokenizer._decode(ids, True), prompt))
    by_bytes = tokenizer.stream(prompt)
    if REPLACEMENT in text or REPLACEMENT in tokenizer.decode(prompt):
        return
    for token in output:
        assert by_bytes.push([token]) == by_window.push([token])
    assert by_bytes.finish() == by_window.finish()


@pytest.mark.parametrize("text", ["日本語", "👨‍👩‍👧‍👦", "e\u0301\u0302", "a😀b", "नमस्ते"])
def test_a_character_appears_whole_or_not_at_all(text: str) -> None:
    tokenizer = byte_level()
    stream = tokenizer.stream()
    seen = [stream.push([token]) for token in tokenizer.encode(text)]
    assert "".join(seen) == text
    assert all(REPLACEMENT not in delta for delta in seen)


def test_prompt_that_ends_inside_a_character_does_not_leak() -> None:
    tokenizer = byte_level()
    emoji = tokenizer.encode("😀")
    assert len(emoji) > 1
    prompt, output = tokenizer.encode("secret ") + emoji[:1], [*emoji[1:], *tokenizer.encode(" ok")]
    assert "secret" not in tokenizer.text(output, prompt)
    assert tokenizer.text(output, prompt).endswith(" ok")


def test_first_space_is_kept_after_a_prompt_and_dropped_without() -> None:
    tokenizer = sentencepiece()
    hello = [tokenizer.token_id("▁Hello")]
    assert tokenizer.text(hello) == "Hello"
    assert tokenizer.text(hello, [tokenizer.token_id("<s>")]) == "Hello"
    assert tokenizer.text(hello, [tokenizer.token_id("▁the")]) == " Hello"


def test_genuine_replacement_character_is_held_and_then_shown() -> None:
    tokenizer = byte_level()
    stream = tokenizer.stream()
    assert [stream.push([token]) for token in tokenizer.encode("a�")] == ["a", "", "", ""]
    assert stream.push(tokenizer.encode("b")) == "�b"


def test_what_is_held_comes_out_at_the_end() -> None:
    stream = byte_level().stream()
    first_byte = byte_level().token_id("ð")
    assert stream.push([first_byte]) == ""
    assert stream.finish() == REPLACEMENT
    assert stream.finish() == ""
