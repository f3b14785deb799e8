"""The validator by itself: forms, ranges, order and words."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerokl.errors import InvalidRequest
from zerokl.server.fields import nearest, table
from zerokl.server.validate import MAX_DEPTH, MAX_VALUES, check, check_sampling, parse_object


def message(table_name: str, body: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequest) as error:
        check(table_name, body)
    assert error.value.status == 400
    return str(error.value)


def sampling_message(body: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequest) as error:
        check_sampling(body, "sampling_params")
    return str(error.value)


NOT_JSON = "request body is not valid JSON"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", f"{NOT_JSON}: EOF while parsing a value at line 1 column 0"),
        (b"{", f"{NOT_JSON}: EOF while parsing an object at line 1 column 1"),
        (b"{\n 'a':1}", f"{NOT_JSON}: key must be a string at line 2 column 2"),
        (b'{"a":NaN}', f"{NOT_JSON}: expected value at line 1 column 6"),
        (b'{"a":Infinity}', f"{NOT_JSON}: expected value at line 1 column 6"),
        (b'\xef\xbb\xbf{"a":1}', f"{NOT_JSON}: expected value at line 1 column 1"),
        (b'{"a":"\\ud800"}', f"{NOT_JSON}: unexpected end of hex escape at line 1 column 13"),
        (b'{"a":"\xff"}', f"{NOT_JSON}: invalid unicode code point at line 1 column 7"),
        (b"[1]", "request body must be a JSON object, got [1]"),
        (b"null", "request body must be a JSON object, got null"),
        (b'"text"', 'request body must be a JSON object, got "text"'),
    ],
)
def test_a_body_that_is_no_json_object_is_refused_in_our_words(body: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_object(body)
    assert str(error.value) == text


def test_depth_is_refused_before_the_parsers_own_limits() -> None:
    inside = b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert parse_object(inside)
    for depth in (MAX_DEPTH, 1000, 100_000):
        with pytest.raises(InvalidRequest, match="nested deeper than 100 levels"):
            parse_object(b'{"a":' + b"[" * depth + b"]" * depth + b"}")
    with pytest.raises(InvalidRequest, match="nested deeper than 100 levels"):
        parse_object(b"[" * 10_000)


def test_values_are_counted_before_they_are_read() -> None:
    most = b'{"a":[' + b"1," * (MAX_VALUES - 1) + b"1]}"
    assert len(parse_object(most)["a"]) == MAX_VALUES
    with pytest.raises(InvalidRequest, match=f"more than {MAX_VALUES} values"):
        parse_object(most.replace(b"]", b",1]"))
    with pytest.raises(InvalidRequest, match=f"more than {MAX_VALUES} values"):
        parse_object(b"1," * MAX_VALUES)  # whatever else is wrong with it
    assert parse_object(b'{"a":"' + b"," * 2 * MAX_VALUES + b'"}')


def test_brackets_in_strings_are_not_depth() -> None:
    text = '[{"\\' * 500 + '"'
    assert parse_object(orjson.dumps({"text": text, "more": [[]] * 200})) == {"text": text, "more": [[]] * 200}


def test_many_brackets_side_by_side_are_not_depth() -> None:
    assert len(parse_object(orjson.dumps({"input_ids": [[1]] * 5000}))["input_ids"]) == 5000


def test_the_last_of_two_equal_keys_wins() -> None:
    assert parse_object(b'{"n":1,"n":2}') == {"n": 2}


@pytest.mark.parametrize("value", ["true", 1, 0, 1.0, "yes", []])
def test_a_bool_is_only_true_or_false(value: Any) -> None:
    assert message("generate", {"stream": value}).startswith("stream must be true or false, got ")


@pytest.mark.parametrize("value", ["2", True, 1.5, [1], {}])
def test_an_integer_is_no_string_bool_or_fraction(value: Any) -> None:
    text = sampling_message({"max_new_tokens": value})
    assert text.startswith("sampling_params.max_new_tokens must be an integer of at least 0")


def test_an_integer_may_be_written_with_a_zero_fraction() -> None:
    assert check_sampling({"max_new_tokens": 5.0}, "sampling_params")["max_new_tokens"] == 5


def test_an_integer_past_64_bits_is_out_of_range_and_not_wrapped() -> None:
    assert "a 64-bit integer, got 1" in sampling_message(orjson.loads(b'{"sampling_seed":18446744073709551615}'))
    assert "a 64-bit integer, got 1e+30" in sampling_message(orjson.loads(b'{"sampling_seed":1e30}'))


def test_a_float_is_any_number_and_no_string() -> None:
    assert check_sampling({"temperature": 1}, "s")["temperature"] == 1.0
    assert sampling_message({"temperature": "1"}).endswith('temperature must be a number from 0 to 1000000, got "1"')
    assert sampling_message({"top_p": 0}).endswith("top_p must be a number above 0 and at most 1, got 0")
    assert sampling_message({"top_p": 1.5}).endswith("got 1.5")


@pytest.mark.parametrize("value", [0, -2, 1.5])
def test_top_k_is_minus_one_or_at_least_one(value: Any) -> None:
    text = sampling_message({"top_k": value})
    assert text == f"sampling_params.top_k must be -1 (all) or an integer of at least 1, got {value}"


def test_null_means_not_given_except_for_max_new_tokens() -> None:
    values = check_sampling({"temperature": None, "max_new_tokens": None, "stop": None}, "s")
    assert values["temperature"] == 1.0
    assert values["max_new_tokens"] is None
    assert values["stop"] == []
    assert check_sampling({}, "s")["max_new_tokens"] == 128


def test_an_unknown_sampling_key_is_refused_and_the_nearest_named() -> None:
    text = sampling_message({"temprature": 1})
    assert text == 'unknown key "temprature" in sampling_params; did you mean "temperature"?'
    assert sampling_message({"zzzzzzzz": 1}) == 'unknown key "zzzzzzzz" in sampling_params'


def test_unknown_keys_of_a_body_are_ignored() -> None:
    assert check("generate", {"text": "a", "bench_extra": {"x": 1}})["text"] == "a"


def test_the_first_bad_field_in_table_order_is_the_one_reported() -> None:
    assert message("generate", {"rid": 3, "stream": 3, "text": 3}).startswith("text must be")
    assert message("generate", {"rid": 3, "stream": 3}).startswith("stream must be")


@pytest.mark.parametrize("name", ["lora_path", "image_data", "return_routed_experts", "session_params", "log_metrics"])
def test_fields_we_lack_pass_when_unset_and_are_named_when_not(name: str) -> None:
    for unset in (None, False, 0, ""):
        check("generate", {"text": "a", name: unset})
    for value in ("x", True, 1, {"a": 1}):
        text = message("generate", {"text": "a", name: value})
        assert text.startswith(f'{name} is not supported here and may only be null, false, 0 or "", got ')


def test_sampling_keys_of_others_pass_only_when_null() -> None:
    check_sampling({"beam_width": None, "custom_params": None, "watermark": None}, "s")
    assert "beam_width is not supported here and may only be null" in sampling_message({"beam_width": 0})


def test_stop_takes_at_most_32_strings_none_empty() -> None:
    assert check_sampling({"stop": "a"}, "s")["stop"] == ["a"]
    assert len(check_sampling({"stop": ["a"] * 32}, "s")["stop"]) == 32
    for bad in (["a"] * 33, "", ["a", ""], [1], {}):
        assert "at most 32 strings, none empty" in sampling_message({"stop": bad})


def test_logit_bias_maps_ids_to_numbers() -> None:
    assert check_sampling({"logit_bias": {"10": 1, "2": -1.5}}, "s")["logit_bias"] == ((2, -1.5), (10, 1.0))
    for bad in ({"a": 1}, {"01": 1}, {"-1": 1}, {"1": "x"}, {"1": 1000001}, {"1": True}, [1]):
        assert "an object of token id to number from -1000000 to 1000000" in sampling_message({"logit_bias": bad})


def test_a_long_value_is_cut_in_the_message() -> None:
    text = message("generate", {"stream": "x" * 500})
    assert text == 'stream must be true or false, got "' + "x" * 56 + "..."


def test_nested_objects_are_checked_by_their_own_table() -> None:
    assert message("completions", {"prompt": "a", "stream_options": {"include_usage": 1}}).startswith(
        "stream_options.include_usage must be true or false"
    )
    assert message("chat", {"messages": [{}], "response_format": {"type": "xml"}}) == (
        'response_format.type must be one of text, json_object, json_schema, structural_tag, got "xml"'
    )


def test_the_nearest_name_is_a_near_one() -> None:
    assert nearest("max_token", ["max_tokens", "min_tokens"]) == "max_tokens"
    assert nearest("nothing_like_it", ["n", "stop"]) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = sorted({field.name for name in ("generate", "completions", "chat", "tokenize") for field in table(name)})


@settings(max_examples=60)
@given(
    name=st.sampled_from(["generate", "sampling_params", "completions", "chat", "tokenize", "detokenize"]),
    body=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6),
)
def test_any_body_gives_values_or_a_refusal_and_nothing_else(name: str, body: dict[str, Any]) -> None:
    parsed = orjson.loads(orjson.dumps(body, option=orjson.OPT_PASSTHROUGH_SUBCLASS)) if _fits_json(body) else {}
    try:
        outcome: object = list(check(name, parsed))
    except InvalidRequest as error:
        outcome = error
    if isinstance(outcome, InvalidRequest):
        assert outcome.status == 400
        assert str(outcome)
    else:
        assert outcome == [field.name for field in table(name)]


def _fits_json(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True
