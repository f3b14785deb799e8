"""Stop strings and patterns against the plainest possible oracle: try every end, then every start."""

from __future__ import annotations

import itertools
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerokl.engine.pattern import Pattern
from zerokl.engine.stops import Match, Stops
from zerokl.errors import InvalidRequest

TEXTS = st.text(alphabet="ab\n", max_size=20)
STRINGS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4)
REPEATS = st.lists(st.sampled_from(["aa", "aba", "abab", "aab", "bb"]), min_size=1, max_size=3)
"""Strings that begin as they end: after one match the next is half made."""


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def first_match(stops: Stops, parts: list[str]) -> Match | None:
    return next((match for part in parts if (match := stops.push(part))), None)


def earliest_string(strings: list[str], text: str) -> Match | None:
    for end in range(1, len(text) + 1):
        for string in strings:
            if text[:end].endswith(string):
                return Match(string, end - len(string), end)
    return None


@given(STRINGS, TEXTS, st.lists(st.integers(0, 100), max_size=5))
def test_the_string_that_completes_earliest_wins_and_ties_go_to_the_list_order(strings, text, cuts):
    assert first_match(Stops(strings), pieces(text, cuts)) == earliest_string(strings, text)


@given(STRINGS, TEXTS)
def test_exactly_what_may_still_become_a_stop_string_is_held(strings, text):
    stops = Stops(strings)
    if stops.push(text) is None:
        beginnings = {string[:size] for string in strings for size in range(len(string))}
        longest = max((size for size in range(len(text) + 1) if text[len(text) - size :] in beginnings), default=0)
        assert stops.held == longest


@settings(max_examples=200)
@given(REPEATS, st.text(alphabet="ab", max_size=6), st.text(alphabet="ab", max_size=6))
def test_a_match_that_does_not_count_is_passed_over_but_its_text_may_start_another(strings, before, after):
    stops = Stops(strings)
    assert stops.push(before, counts=False) is None
    ends = [
        match for end in range(len(before) + 1, len(before + after) + 1) if (match := at(strings, before + after, end))
    ]
    assert stops.push(after) == (ends[0] if ends else None)


def at(strings: list[str], text: str, end: int) -> Match | None:
    return next((Match(s, end - len(s), end) for s in strings if text[:end].endswith(s)), None)


PATTERNS = [
    "ab",
    r"(ab|ba$)\Z",
    "a+b$",
    "a+b",
    "a*?b",
    "(ab|ba)a",
    "[ab]\n",
    "[^a]a{2}",
    "a{2,3}b{0,2}a",
    "(a|b\n)+a",
    "^a",
    "^(a|b)*\n",
    r"\Ab",
    "(?i:A)b",
    "(?s)a.b",
    "a.b",
    "(?:a(b(a)?)?)\n",
    r"\w\s",
    r"\S{3}",
    "(a*)*b",
    "a(|b)a",
]


def earliest_pattern(source: str, text: str) -> Match | None:
    regex = re.compile(source)
    for end in range(1, len(text) + 1):
        for start in range(end):
            if matches_exactly(regex, source, text, start, end):
                return Match(source, start, end)
    return None


def matches_exactly(regex: re.Pattern[str], source: str, text: str, start: int, end: int) -> bool:
    """`fullmatch` takes the start of its window for the start of the text only where it is the start."""
    if source.startswith(("^", r"\A")) and start > 0:
        return False
    return regex.fullmatch(text, start, end) is not None


@pytest.mark.parametrize("source", PATTERNS)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 100), max_size=5))
def test_a_pattern_ends_where_pythons_re_first_matches(source, text, cuts):
    stops = Stops((), (Pattern.compiled(source),))
    assert first_match(stops, pieces(text, cuts)) == earliest_pattern(source, text)


@pytest.mark.parametrize("source", PATTERNS)
@given(text=TEXTS, more=TEXTS)
def test_no_later_match_of_a_pattern_starts_before_what_is_held(source, text, more):
    stops = Stops((), (Pattern.compiled(source),))
    if stops.push(text) is None:
        first_held = len(text) - stops.held
        match = stops.push(more)
        assert match is None or match.start >= first_held


def test_a_pattern_holds_nothing_when_no_match_is_under_way():
    stops = Stops((), (Pattern.compiled("foo+d"),))
    held = [(stops.push(char), stops.held)[1] for char in "no f fo fooo x"]
    assert held == [0, 0, 0, 1, 0, 1, 2, 0, 1, 2, 3, 4, 0, 0]


@pytest.mark.parametrize("char", ["a", "A", "b", "B", "é", "É", "ß", "İ", "ı", "K", "_", "٣", "\u2003", "\n", "-"])
@pytest.mark.parametrize(
    "source",
    [
        "[^a]",
        "(?i)[^a]",
        "(?i)é",
        "(?i)[a-c]",
        r"\d",
        r"\D",
        r"\w",
        r"\W",
        r"\s",
        r"\S",
        "(?i)[^A-Z]",
        r"(?a)\w",
        "(?i)k",
    ],
)
def test_one_character_passes_as_in_pythons_re(source, char):
    matched = Stops((), (Pattern.compiled(source),)).push(char) is not None
    assert matched == (re.fullmatch(source, char) is not None)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("(", "missing"),
        ("a*", "empty text"),
        ("^", "empty text"),
        ("a|", "empty text"),
        ("(?=a)b", "assert is not taken"),
        ("(?<!a)b", "assert_not is not taken"),
        (r"(a)\1", "groupref is not taken"),
        ("a$b", "at is not taken"),
        ("$", "empty text"),
        (r"\ba", "at is not taken"),
        ("(?m)^a", "at is not taken"),
        ("a++b", "possessive_repeat is not taken"),
        ("(?>a)b", "atomic_group is not taken"),
        ("a{2000}", "more than 1000 states"),
        ("((a{50}){50}){50}", "more than 1000 states"),
        ("(?:){4000000000}", "empty text"),
        ("a{99999999999}", "too large"),
        ("a" * 1001, "1001 characters"),
    ],
)
def test_a_pattern_that_is_not_taken_is_refused_with_the_reason(source, why):
    with pytest.raises(InvalidRequest, match=why) as caught:
        Pattern.compiled(source)
    assert caught.value.param == "stop_regex"


@pytest.mark.parametrize("source", ["(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*)*x", "(a?){30}a{30}b"])
def test_patterns_that_make_a_backtracking_matcher_explode_take_linear_time(source):
    stops = Stops((), (Pattern.compiled(source),))
    started = time.process_time()
    assert stops.push("a" * 400) is None
    assert time.process_time() - started < 2


@pytest.mark.parametrize("depth", [10, 100, 499])
def test_deep_nesting_is_a_pattern_or_a_refusal(depth):
    try:
        pattern = Pattern.compiled("(" * depth + "a" + ")" * depth)
    except InvalidRequest:
        assert depth > 100
    else:
        assert Stops((), (pattern,)).push("ba") is not None
