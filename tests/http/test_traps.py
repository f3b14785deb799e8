"""The parity traps of the API's contract, by number: what two frontends would get wrong in two ways."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.http.conftest import says
from tests.http.live import Live, live
from tests.http.raw import frames
from tests.http.toy import BOS, toy_files
from zerokl.errors import EngineError, InvalidRequest
from zerokl.server.completions_body import CompletionChoice
from zerokl.server.job import Job, Prompt
from zerokl.server.scores import NATIVE_FLOOR, OPENAI_FLOOR, Rows, floats
from zerokl.server.validate import MAX_VALUES
from zerokl.tokenizer import Tokenizer
from zerokl.types import Logprobs
from zerokl.wire.messages import LogprobOptions
from zerokl.wire.records import Record

GREEDY = {"temperature": 0, "max_new_tokens": 1}
EVERYWHERE = {"temperature": 0, "max_tokens": 1, "logprobs": 1}


def scored(server: Live, prompt: str) -> tuple[str, str, str]:
    """The bodies of the three routes for one scripted token."""
    native = server.post("/generate", {"text": prompt, "sampling_params": GREEDY, "return_logprob": True}).text
    completion = server.post("/v1/completions", {"prompt": prompt, **EVERYWHERE}).text
    body = {"text": prompt, "sampling_params": GREEDY, "return_logprob": True, "stream": True}
    return native, completion, server.post("/generate", body).text


def test_trap_01_a_float32_is_widened_and_its_shortest_double_printed(server: Live) -> None:
    for text in scored(server, "tenth"):
        assert "-0.10000000149011612" in text
        assert "-0.1," not in text


def test_trap_02_exponents_are_printed_as_orjson_does() -> None:
    assert orjson.dumps([1e-5, 1e16, 1e-7, -3.4028234663852886e38]) == b"[0.00001,1e+16,1e-7,-3.4028234663852886e+38]"


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_trap_02_every_float32_survives_the_text(value: float) -> None:
    [widened] = floats(struct.pack("<f", value), NATIVE_FLOOR)
    assert struct.pack("<d", orjson.loads(orjson.dumps(widened))) == struct.pack("<d", value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_trap_03_a_temperature_is_read_to_the_last_bit(value: float) -> None:
    assert struct.pack("<d", float(orjson.loads(repr(value)))) == struct.pack("<d", value) or value == 0


def test_trap_04_minus_infinity_is_a_number_of_the_route_and_never_null(server: Live) -> None:
    native, completion, stream = scored(server, "never")
    for text in (native, stream):
        assert "[[-3.4028234663852886e+38,97,null]]" in text
    assert '"token_logprobs":[-9999.0]' in completion
    assert floats(struct.pack("<2f", -math.inf, -1), OPENAI_FLOOR) == [-9999.0, -1.0]


def test_trap_04_nan_is_our_own_fault_500_without_a_trace(server: Live) -> None:
    response = server.post("/generate", {"text": "nan", "sampling_params": GREEDY, "return_logprob": True})
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "internal error; the server's log has the details",
        "type": "server_error",
        "param": None,
        "code": None,
    }
    assert server.client.get("/health").status_code == 200
    with pytest.raises(EngineError):
        floats(struct.pack("<f", math.nan), NATIVE_FLOOR)


def test_trap_05_missing_first_scores_are_counted_so_a_real_nan_stays_visible() -> None:
    rows = Rows()
    rows.extend_nulls(1)
    rows.extend(Logprobs(1, chosen=struct.pack("<f", -1)), NATIVE_FLOOR)
    assert rows.chosen == [None, -1.0]
    with pytest.raises(EngineError):
        rows.extend(Logprobs(1, chosen=struct.pack("<f", math.nan)), NATIVE_FLOOR)


def test_trap_06_strings_are_escaped_as_little_as_json_allows(server: Live) -> None:
    text = '\x00\x08\x0c\n\r\t\x1f/\x7f"\\é我😀'
    answer = server.post("/detokenize", {"tokens": list(text.encode())}).content
    assert answer == b'{"text":"\\u0000\\b\\f\\n\\r\\t\\u001f/\x7f\\"\\\\' + "é我😀".encode() + b'"}'


@pytest.mark.parametrize("body", [b'{"text":"\\ud800"}', b'{"a":NaN}', b'{"a":Infinity}', b"\xef\xbb\xbf{}", b"{"])
def test_trap_07_what_only_some_parsers_take_is_refused_in_our_words(server: Live, body: bytes) -> None:
    response = server.client.post("/generate", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("request body is not valid JSON: ")


def test_trap_08_depth_and_integers_are_checked_by_us(server: Live) -> None:
    deep = b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    response = server.client.post("/generate", content=deep)
    assert response.json()["error"]["message"] == "request body is nested deeper than 100 levels"
    wide = b'{"input_ids":[' + b"1," * MAX_VALUES + b"1]}"
    response = server.client.post("/generate", content=wide)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == f"request body holds more than {MAX_VALUES} values"
    text = b'{"text":"' + b"," * 2 * MAX_VALUES + b'"}'
    assert server.client.post("/generate", content=text).json()["error"]["code"] == "context_length_exceeded"
    huge = b'{"text":"a","sampling_params":{"sampling_seed":9223372036854775808}}'
    assert server.client.post("/generate", content=huge).status_code == 400
    zero = b'{"text":"ab","sampling_params":{"temperature":-0.0,"max_new_tokens":1}}'
    assert server.client.post("/generate", content=zero).json()["text"] == "x"


def test_trap_09_the_last_of_two_equal_keys_wins(server: Live) -> None:
    body = b'{"text":"stop","text":"ab","sampling_params":{"temperature":0,"max_new_tokens":9,"max_new_tokens":1}}'
    assert server.client.post("/generate", content=body).json()["text"] == "x"


def test_trap_10_errors_come_from_the_table_in_its_order(server: Live) -> None:
    body = {"rid": 1, "text": "a", "stream": "yes", "top_logprobs_num": -1}
    error = server.post("/generate", body).json()["error"]
    assert error["message"] == "top_logprobs_num must be an integer from 0 to 1024, got -1"
    assert error["param"] == "top_logprobs_num"


def test_trap_11_keys_stand_in_the_pages_order(server: Live) -> None:
    completion = server.post("/v1/completions", {"prompt": "ab", **EVERYWHERE, "return_token_ids": True}).json()
    assert list(completion) == ["id", "object", "created", "model", "choices", "usage", "system_fingerprint"]
    assert list(completion["choices"][0]) == [
        "index",
        "text",
        "logprobs",
        "finish_reason",
        "matched_stop",
        "token_ids",
        "prompt_token_ids",
    ]
    assert list(completion["usage"]) == [
        "prompt_tokens",
        "total_tokens",
        "completion_tokens",
        "prompt_tokens_details",
        "completion_tokens_details",
    ]


@pytest.mark.python_frontend
def test_trap_12_the_frontend_reads_the_run_folders_tokenizer_and_nothing_else(server: Live) -> None:
    mine = Tokenizer.load(server.folder)
    assert mine.digest == server.frontend.app.service.tokenizer.digest == Tokenizer(toy_files()).digest


def test_trap_13_bos_is_the_tokenizers_for_text_the_templates_for_chat_and_never_for_ids() -> None:
    with live(add_bos=True) as server:
        assert server.post("/tokenize", {"prompt": "a"}).json()["tokens"] == [BOS, 97]
        chat = server.post("/tokenize", {"messages": [{"role": "user", "content": "a"}]}).json()["tokens"]
        assert BOS not in chat
        params = {"max_new_tokens": 0}
        doubled = server.generate(input_ids=[BOS, BOS, 97], sampling_params=params, return_prompt_token_ids=True)
        assert doubled["prompt_token_ids"] == [BOS, BOS, 97]


def test_trap_14_joined_deltas_are_the_whole_text_even_of_broken_utf8() -> None:
    outputs = [[0xE6, 0x88], [0xF0, 0x9F, 0x98, 0x80], [0xFF, 0x61, 0xC3], [0xE6, 0x88, 0x91, 0xE6], [0x80, 0x80]]
    with live([says(f"p{i}", tokens) for i, tokens in enumerate(outputs)]) as server:
        for i, tokens in enumerate(outputs):
            body = {"prompt": f"p{i}", "max_tokens": len(tokens), "temperature": 0}
            whole = server.post("/v1/completions", body).json()["choices"][0]["text"]
            stream = frames(server.post("/v1/completions", {**body, "stream": True}).text)
            assert "".join(frame["choices"][0]["text"] for frame in stream) == whole
            assert whole == bytes(tokens).decode(errors="replace")


@given(st.text(max_size=12))
def test_trap_15_offsets_count_code_points(text: str) -> None:
    tokenizer = Tokenizer(toy_files())
    ids = tokenizer.encode(text)
    choice = choice_of(ids, tokenizer)
    offset = 0
    for token_text, given_offset in zip(choice["tokens"], choice["text_offset"], strict=True):
        assert given_offset == offset
        offset += len(token_text)


def choice_of(ids: list[int], tokenizer: Tokenizer) -> Any:
    job = Job(Prompt([1]), logprobs=LogprobOptions())
    choice = CompletionChoice(job, 0, None, tokenizer.token_text, show_ids=False)
    choice.add(Record(1, ids, logprobs=Logprobs(len(ids), chosen=struct.pack(f"<{len(ids)}f", *[-1.0] * len(ids)))))
    return choice.take()["logprobs"]


def test_trap_15_a_piece_of_a_character_is_named_by_its_bytes(server: Live) -> None:
    body = {"prompt": "zh", "max_tokens": 4, "temperature": 0, "logprobs": 0}
    logprobs = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [r"bytes:\xe6", r"bytes:\x88", r"bytes:\x91", r"bytes:\xf0"]
    assert logprobs["text_offset"] == [0, 10, 20, 30]


def test_trap_16_the_stop_that_completes_earliest_wins_and_ties_go_by_list_order(server: Live) -> None:
    def matched(*stop: str) -> Any:
        params = {"temperature": 0, "max_new_tokens": 7, "stop": list(stop)}
        return server.generate(text="stop", sampling_params=params)["meta_info"]["finish_reason"]["matched"]

    assert matched("two", "ne") == "ne"
    assert matched("one.two", "two") == "one.two"
    assert matched("two", "one.two") == "two"
    early = {"temperature": 0, "max_new_tokens": 7, "stop": ["n", "two"], "min_new_tokens": 3}
    assert server.generate(text="stop", sampling_params=early)["text"] == "one."


def test_trap_17_frames_are_never_joined(server: Live) -> None:
    params = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True}
    for _ in range(3):
        got = frames(server.post("/generate", {"text": "q", "stream": True, "sampling_params": params}).text)
        assert [frame["meta_info"]["completion_tokens"] for frame in got] == list(range(1, 41))


def test_trap_18_jinja2s_sandbox_is_the_reference_for_templates() -> None:
    """What minijinja does otherwise by itself: blanks around blocks, loop controls, tojson, raise_exception."""
    source = (
        "{% for m in messages %}\n  {% if loop.index == 3 %}{% break %}{% endif %}\n{{ m.content | tojson }}\n"
        "{% generation %}{{ {'b': 1, 'a': '<é>'} | tojson(sort_keys=true) }}{% endgeneration %}{% endfor %}"
        "{{ 1e20 }} {{ '%.2f' % 0.5 }} {{ 'a b c'.rsplit(' ', 1) }} {{ 'aß'.title() }}"
    )
    template = Tokenizer(replace(toy_files(), chat_template=source)).chat
    got = template.render([{"role": "user", "content": text} for text in ("<a>", "é'", "never")])
    assert got == '"<a>"\n{"a": "<é>", "b": 1}"é\'"\n{"a": "<é>", "b": 1}1e+20 0.50 [\'a b\', \'c\'] Aß'
    refusing = Tokenizer(replace(toy_files(), chat_template="{{ raise_exception('roles must alternate') }}")).chat
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        refusing.render([{"role": "user", "content": "a"}])


def test_trap_19_messages_and_tools_reach_the_template_as_sent() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}}
    files = toy_files()
    template = "{{ messages | tojson }}{{ tools | tojson }}"
    tokenizer = Tokenizer(type(files)(files.tokenizer_json, files.special, template))
    messages = [{"role": "user", "content": "x", "extra": 1}]
    assert tokenizer.chat.render(messages, tools=[tool]) == json.dumps(messages) + json.dumps([tool])


def test_trap_20_the_test_clock_freezes_ids_and_times(server: Live) -> None:
    body = {"prompt": "ab", "max_tokens": 2, "temperature": 0}
    assert server.post("/v1/completions", body).content == server.post("/v1/completions", body).content


def test_trap_20_without_a_test_clock_ids_differ() -> None:
    with live(test_clock=None) as server:
        body = {"prompt": "ab", "max_tokens": 2, "temperature": 0}
        first, second = (server.post("/v1/completions", body).json() for _ in "12")
        assert first["id"] != second["id"]
        assert len(first["id"]) == len("cmpl-") + 32
        assert server.generate(text="a", sampling_params=GREEDY)["meta_info"]["e2e_latency"] > 0


def test_trap_21_frontends_add_up_nothing_but_whole_numbers(server: Live) -> None:
    """Of all numbers in an answer with two prompts and two samples only logprobs and the latency have fractions."""
    body = {"prompt": ["ab", "tenth"], "n": 2, "max_tokens": 3, "seed": 1, "logprobs": 2, "echo": True}
    completion = server.post("/v1/completions", body).json()
    chat = {
        "messages": [{"role": "user", "content": "a"}],
        "n": 2,
        "max_tokens": 3,
        "logprobs": True,
        "top_logprobs": 2,
    }
    answers = [completion, server.post("/v1/chat/completions", chat).json()]
    native = {"text": ["ab", "tenth"], "sampling_params": {"n": 2, "max_new_tokens": 3}}
    answers.append(server.post("/generate", native).json())
    for path in fractions(answers):
        assert "logprob" in path or path.endswith("e2e_latency"), path
    assert completion["usage"]["total_tokens"] == 2 + 5 + 4 * 3


def fractions(value: Any, path: str = "") -> Iterator[str]:
    """Where floats stand."""
    if isinstance(value, float):
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from fractions(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from fractions(item, path)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 259, -1])
def test_trap_22_an_id_is_an_integer_of_the_vocabulary(server: Live, value: Any) -> None:
    response = server.post("/generate", {"input_ids": [5, value]})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("input_ids[1] must be ")


def test_two_ids_of_one_text_collide_and_the_likelier_stays() -> None:
    job = Job(Prompt([1]), logprobs=LogprobOptions(num_top=2))
    choice = CompletionChoice(job, 0, None, lambda token: "same", show_ids=False)
    top = Logprobs(1, 2, 0, struct.pack("<f", -1), struct.pack("<2i", 7, 8), struct.pack("<2f", -1, -2))
    choice.add(Record(1, [7], logprobs=top))
    assert choice.take()["logprobs"]["top_logprobs"] == [{"same": -1.0}]


def test_trap_23_names_and_labels_of_figures_depend_on_no_traffic() -> None:
    """One list in one order, whole before the first request: what Rust writes can be compared line by line."""
    with live() as server:

        def names() -> list[str]:
            return [line for line in server.client.get("/metrics").text.splitlines() if line.startswith("#")]

        before = names()
        for path, body in (("/generate", {"text": "ab"}), ("/v1/completions", {"prompt": 3}), ("/nowhere", {})):
            server.post(path, body)
        assert names() == before
        assert len(before) == 2 * len({line.split()[2] for line in before})
