"""The text side: what is streamed joins to what isn't, nothing sent is taken back, records end where tokens say."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerokl.engine.fake import BOS, EOS, ByteTokenizer
from zerokl.engine.pattern import Pattern
from zerokl.engine.stops import Match, Stops
from zerokl.engine.text import RequestText, TextOptions
from zerokl.types import Finish, Logprobs, Progress, RequestId
from zerokl.wire.messages import First
from zerokl.wire.records import Record

TOKENIZER = ByteTokenizer()
PIECES = [[ord("a")], [ord("b")], [ord("a"), ord("b")], [ord("\n")], list("é".encode()), [0xC3], [0xA9], [EOS], [BOS]]
TOKENS = st.lists(st.sampled_from(PIECES), max_size=12).map(
    lambda pieces: [token for piece in pieces for token in piece]
)
"""Letters that stop strings are made of, a character of two bytes, whole and torn, and what has no text."""
OPTIONS = st.builds(
    TextOptions,
    stop=st.lists(st.text(alphabet="ab\né", min_size=2, max_size=3), max_size=4).map(tuple),
    patterns=st.sampled_from([(), (Pattern.compiled("a+b"),), (Pattern.compiled("[ab]\n?é"),)]),
    no_trim=st.booleans(),
    min_new_tokens=st.integers(0, 3),
    stream_interval=st.integers(0, 4),
)


def row(number: int) -> Logprobs:
    return Logprobs(1, 0, 0, array("f", [-number]).tobytes())


def started(options: TextOptions, skip_special_tokens: bool = True) -> RequestText:
    stream = TOKENIZER.stream((), skip_special_tokens=skip_special_tokens)
    return RequestText(5, stream, options, First(0, 1, 4, 0, 1))


def steps(tokens: list[int], finish: Finish, *, extra: int = 3) -> list[Progress]:
    """One token per step; `finish` rides on the last, and steps that the engine ran too far follow."""
    made = [Progress(RequestId(1), token, row(number)) for number, token in enumerate(tokens)]
    if made:
        made[-1] = Progress(RequestId(1), tokens[-1], row(len(tokens) - 1), finish=finish)
    else:
        made = [Progress(RequestId(1), finish=finish)]
    return made + [Progress(RequestId(1), ord("x"), row(99))] * extra


def run(text: RequestText, progress: list[Progress]) -> list[Record]:
    return [record for one in progress if (record := text.advance(one)) is not None]


def answer(records: list[Record]) -> tuple[list[int], str, bytes, object]:
    """What the client has in the end."""
    tokens = [token for record in records for token in record.tokens]
    rows = b"".join(record.logprobs.chosen for record in records if record.logprobs)
    return tokens, "".join(record.text for record in records), rows, records[-1].done


def plain_answer(tokens: list[int], options: TextOptions, finish: Finish) -> tuple[list[int], str]:
    """The same by the definition: decode every beginning, take the first that holds a match that counts."""
    for count in range(1, len(tokens) + 1):
        last = count == len(tokens)
        text, before = (visible(tokens[:size], last and size == count, finish, options) for size in (count, count - 1))
        match = match_after(text, len(before), options) if count > options.min_new_tokens else None
        if match is not None:
            return tokens[:count], text if options.no_trim else text[: match.start]
    return tokens, visible(tokens, True, finish, options)


def visible(tokens: list[int], last: bool, finish: Finish, options: TextOptions) -> str:
    if last and tokens and finish.kind == "stop" and not options.no_trim:
        tokens = tokens[:-1]
    stream = TOKENIZER.stream(())
    text = "".join(stream.push((token,)) for token in tokens)
    return text + stream.finish() if last else text


def match_after(text: str, start: int, options: TextOptions) -> Match | None:
    """The first match that completes past `start` (what completed before did not count)."""
    stops = Stops(options.stop, options.patterns)
    stops.push(text[:start], counts=False)
    return stops.push(text[start:])


FINISHES = st.sampled_from([Finish("length"), Finish("stop", EOS), Finish("abort", message="gone")])


@settings(max_examples=300)
@given(TOKENS, OPTIONS, FINISHES)
def test_records_joined_are_the_whole_answer(tokens, options, finish):
    tokens = [*tokens, EOS] if finish.kind == "stop" else tokens
    records = run(started(options), steps(tokens, finish))
    joined_tokens, text, rows, done = answer(records)
    assert (joined_tokens, text) == plain_answer(tokens, options, finish)
    assert rows == array("f", [-number for number in range(len(joined_tokens))]).tobytes()
    assert done.completion_tokens == len(joined_tokens)
    assert [record.done is not None for record in records] == [False] * (len(records) - 1) + [True]
    assert [record.first is not None for record in records] == [True] + [False] * (len(records) - 1)


@given(TOKENS, OPTIONS, st.integers(1, 5))
def test_a_stream_and_one_record_at_the_end_give_the_same_answer(tokens, options, interval):
    streamed, whole = (
        answer(run(started(with_interval(options, one)), steps(tokens, Finish("length")))) for one in (interval, 0)
    )
    assert streamed == whole
    assert len(run(started(with_interval(options, 0)), steps(tokens, Finish("length")))) == 1


def with_interval(options: TextOptions, interval: int) -> TextOptions:
    return TextOptions(options.stop, options.patterns, {}, options.no_trim, options.min_new_tokens, interval)


@given(TOKENS, TOKENS, OPTIONS)
def test_records_of_a_common_beginning_are_the_same_whatever_follows(common, rest, options):
    short = run(started(options), [Progress(RequestId(1), token, row(n)) for n, token in enumerate(common)])
    long = run(started(options), [Progress(RequestId(1), token, row(n)) for n, token in enumerate(common + rest)])
    assert long[: len(short)] == short


@given(TOKENS, st.integers(1, 5))
def test_without_stop_strings_records_end_at_token_one_and_every_k(tokens, interval):
    records = run(started(TextOptions(stream_interval=interval)), steps(tokens, Finish("length"), extra=0))
    ends, total = [], 0
    for record in records:
        total += len(record.tokens)
        ends.append(total)
    due = [count for count in range(1, len(tokens) + 1) if (count - 1) % interval == 0]
    assert ends == sorted({*due, len(tokens)})


def test_a_record_that_was_held_past_its_interval_moves_none_after_it():
    options = TextOptions(stop=("c!",), stream_interval=2)
    assert texts(options, "abcdefgh") == ["a", "bcd", "e", "fg"]


def texts(options: TextOptions, content: str, finish: Finish | None = None, **how) -> list[str]:
    tokens = list(content.encode())
    progress = steps(tokens, finish, **how) if finish else [Progress(RequestId(1), token) for token in tokens]
    return [record.text for record in run(started(options), progress)]


def test_a_tail_that_may_become_a_stop_string_is_held_and_then_sent_or_cut():
    options = TextOptions(stop=("\nUser:",))
    assert texts(options, "ab\nUsing") == ["a", "b", "\nUsi", "n", "g"]
    assert texts(options, "ab\nUser:x") == ["a", "b", ""]


def test_what_was_held_at_the_end_is_sent():
    assert texts(TextOptions(stop=("\nUser:",)), "ab\nUs", Finish("length"), extra=0) == ["a", "b", "\nUs"]


def test_with_no_trim_nothing_is_held_and_the_match_stays():
    text = started(TextOptions(stop=("bc",), no_trim=True))
    records = run(text, [Progress(RequestId(1), token) for token in b"abcd"])
    assert [record.text for record in records] == ["a", "b", "c"]
    assert text.stopped == Finish("stop", "bc")


def test_text_inside_a_character_gives_a_record_without_text():
    assert texts(TextOptions(), "a😀b") == ["a", "", "", "", "😀", "b"]


def test_a_character_that_never_completes_is_flushed_as_u_fffd():
    records = run(started(TextOptions()), steps([ord("a"), 0xF0, 0x9F], Finish("length"), extra=0))
    assert [record.text for record in records] == ["a", "", "\N{REPLACEMENT CHARACTER}"]


def test_a_stop_string_that_the_last_token_completes_comes_before_the_length():
    records = run(started(TextOptions(stop=("b",))), steps(list(b"ab"), Finish("length")))
    assert records[-1].done.matched_text == "b"
    assert records[-1].done.kind == "stop"


@pytest.mark.parametrize(("minimum", "text"), [(0, "a"), (1, "a"), (2, "aba"), (4, "ababb")])
def test_a_match_within_min_new_tokens_does_not_count(minimum, text):
    records = run(started(TextOptions(stop=("b",), min_new_tokens=minimum)), steps(list(b"ababb"), Finish("length")))
    assert "".join(record.text for record in records) == text.removesuffix("b" if minimum == 4 else "")


def test_a_stop_token_has_no_text_unless_it_is_wanted():
    kept = TextOptions(no_trim=True)
    tokens = [ord("a"), EOS]
    for options, skip, text in ((TextOptions(), False, "a"), (kept, True, "a"), (kept, False, "a</s>")):
        records = run(started(options, skip), steps(tokens, Finish("stop", EOS)))
        assert "".join(record.text for record in records) == text
        assert records[-1].done.matched_id == EOS
        assert records[-1].tokens[-1] == EOS


def test_the_name_of_a_skipped_special_token_stops_by_its_id():
    text = started(TextOptions(stop=("<s>",), stop_specials={BOS: "<s>"}))
    records = run(text, [Progress(RequestId(1), token) for token in (ord("a"), BOS, ord("b"))])
    assert text.stopped == Finish("stop", "<s>")
    assert answer(records)[:2] == ([ord("a"), BOS], "a")
    assert records[-1].done.matched_text == "<s>"


def test_scores_of_all_chunks_come_with_the_first_record():
    text = started(TextOptions())
    progress = [
        Progress(RequestId(1), scores=row(1)),
        Progress(RequestId(1), scores=row(2)),
        Progress(RequestId(1), 97, row(3)),
    ]
    (record,) = run(text, progress)
    assert record.scores == row(1).joined(row(2))
    assert record.logprobs == row(3)


def test_scoring_alone_is_one_record_without_tokens():
    text = started(TextOptions())
    progress = Progress(RequestId(1), scores=row(1), cached_tokens=64, finish=Finish("length"))
    (record,) = run(text, [progress])
    assert (list(record.tokens), record.text, record.scores) == ([], "", row(1))
    assert record.first == First(0, 1, 4, 64, 1)
    assert record.done.completion_tokens == 0
