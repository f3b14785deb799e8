"""Structured output over HTTP: every way to ask for a form, and what can't be kept to is a 400."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.http.live import Live
from tests.http.raw import frames

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f>"],
}
HI = [{"role": "user", "content": "hi"}]


def generated(server: Live, **sampling: Any) -> str:
    text: str = server.generate(text="ab", sampling_params={"max_new_tokens": 400, "temperature": 0, **sampling})[
        "text"
    ]
    return text


def completed(server: Live, **more: Any) -> str:
    response = server.post("/v1/completions", {"prompt": "ab", "max_tokens": 400, "temperature": 0, **more})
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def test_generate_takes_each_kind(server: Live) -> None:
    assert json.loads(generated(server, json_schema=SCHEMA)).keys() == {"name", "ok"}
    assert json.loads(generated(server, json_schema=json.dumps(SCHEMA))).keys() == {"name", "ok"}
    assert re.fullmatch("(red|green) [0-9]{3}", generated(server, regex="(red|green) [0-9]{3}"))
    assert generated(server, ebnf='root ::= "hi" | "hello"') in ("hi", "hello")


def test_completions_take_each_form(server: Live) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
    assert json.loads(completed(server, response_format=schema)).keys() == {"name", "ok"}
    assert re.fullmatch(r"\s*\{.*", completed(server, response_format={"type": "json_object"}), re.DOTALL)
    assert completed(server, regex="yes|no") in ("yes", "no")
    assert completed(server, response_format={"type": "text"}) == completed(server)
    assert completed(server, response_format=TAG, max_tokens=5)


def test_chat_streams_what_it_answers_whole(server: Live) -> None:
    body = {"messages": HI, "temperature": 1, "seed": 5, "max_tokens": 80}
    body["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    whole = server.post("/v1/chat/completions", body).json()["choices"][0]
    assert json.loads(whole["message"]["content"]).keys() == {"name", "ok"}
    assert whole["finish_reason"] == "stop"
    chunks = frames(server.post("/v1/chat/completions", {**body, "stream": True}).text)
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == whole["message"]["content"]


def test_samples_differ_and_all_keep_to_the_form(server: Live) -> None:
    body = {"prompt": "ab", "n": 6, "max_tokens": 9, "regex": "[a-z]{6}", "seed": 1}
    texts = [choice["text"] for choice in server.post("/v1/completions", body).json()["choices"]]
    assert all(re.fullmatch("[a-z]{6}", text) for text in texts)
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/generate", {"text": "a", "sampling_params": {"regex": "[0-9"}}, "regex", "unclosed character class"),
        ("/generate", {"text": "a", "sampling_params": {"ebnf": "?"}}, "ebnf", "ebnf is not usable"),
        ("/v1/completions", {"prompt": "a", "json_schema": {"type": "x"}}, "json_schema", "Invalid type: x"),
        ("/v1/completions", {"prompt": "a", "json_schema": "{"}, "json_schema", "json_schema is not usable"),
        (
            "/v1/completions",
            {"prompt": "a", "response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "must be an object, got null",
        ),
        (
            "/v1/completions",
            {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
            "must be an object, got 5",
        ),
        (
            "/v1/chat/completions",
            {"messages": HI, "response_format": {"type": "json_object"}, "regex": "a"},
            "regex",
            "got response_format and regex",
        ),
        (
            "/v1/chat/completions",
            {"messages": HI, "response_format": {"type": "structural_tag"}},
            "structural_tag",
            "structures must be a list",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_form_that_can_not_be_kept_to_is_a_400(
    server: Live, path: str, body: dict[str, Any], param: str, words: str, stream: bool
) -> None:
    response = server.post(path, {**body, "stream": stream})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert words in error["message"]
