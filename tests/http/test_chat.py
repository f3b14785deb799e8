"""/v1/chat/completions: whole bodies, messages, templates, tools, logprobs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.conftest import says
from tests.http.live import Live, live

HI = [{"role": "user", "content": "hi"}]
ASKED = "<user>hi<|im_end|><assistant>"


def chat(server: Live, **body: Any) -> Any:
    response = server.post("/v1/chat/completions", {"messages": HI, "max_tokens": 2, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def prompt_of(server: Live, **body: Any) -> str:
    """The prompt's text, which the toy's ids spell."""
    ids = chat(server, return_token_ids=True, **body)["choices"][0]["prompt_token_ids"]
    response = server.post("/detokenize", {"tokens": ids, "skip_special_tokens": False})
    text: str = response.json()["text"]
    return text


def test_a_whole_body() -> None:
    prompt = [*b"<user>hi", 258, *b"<assistant>"]
    with live([{**says("", "ok", [-0.25, -0.5]), "prompt": prompt}]) as server:
        response = server.post("/v1/chat/completions", {"messages": HI, "max_tokens": 2, "temperature": 0})
        assert response.content == (
            b'{"id":"chatcmpl-00000000000000000000000000000000","object":"chat.completion","created":1700000000,'
            b'"model":"toy","choices":[{"index":0,"message":{"role":"assistant","content":"ok","reasoning_content":null},'
            b'"logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":{"prompt_tokens":20,"total_tokens":22,'
            b'"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":null},'
            b'"system_fingerprint":"fake"}'
        )
        body = {"messages": HI, "max_tokens": 2, "temperature": 0, "logprobs": True, "top_logprobs": 1}
        entries = server.post("/v1/chat/completions", body).json()["choices"][0]["logprobs"]["content"]
        assert entries[0] == {
            "token": "o",
            "bytes": [111],
            "logprob": -0.25,
            "top_logprobs": [{"token": "o", "bytes": [111], "logprob": -0.25}],
        }


def test_the_template_writes_the_prompt(server: Live) -> None:
    assert prompt_of(server) == ASKED
    assert prompt_of(server, add_generation_prompt=False) == "<user>hi<|im_end|>"


def test_text_parts_are_joined(server: Live) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    assert prompt_of(server, messages=[{"role": "user", "content": parts}]) == ASKED


def test_the_last_message_can_be_continued(server: Live) -> None:
    messages = [*HI, {"role": "assistant", "content": "well"}]
    assert prompt_of(server, messages=messages, continue_final_message=True) == "<user>hi<|im_end|><assistant>well"


def test_max_completion_tokens_wins_and_absent_is_the_rest_of_the_context(server: Live) -> None:
    assert chat(server, max_completion_tokens=1, max_tokens=9)["usage"]["completion_tokens"] == 1
    body = {"messages": HI, "ignore_eos": True, "temperature": 0}
    usage = server.post("/v1/chat/completions", body).json()["usage"]
    assert usage["total_tokens"] == 512


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": None}, "messages must be a list of messages, not empty, got null"),
        ({"messages": []}, "messages must be a list of messages, not empty, got []"),
        ({"messages": ["hi"]}, 'messages[0] must be an object, got "hi"'),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role must be one of system, developer, user, "
         'assistant, tool, got "robot"'),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content must be a string, null or a list of text "
         "parts, got 1"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 'messages[0].content[0] must be '
         '{"type":"text","text":string}, got {"type":"image_url"}'),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs true, got top_logprobs 3"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be an integer from 0 to 20, got 21"),
        ({"logprobs": 1}, "logprobs must be true or false, got 1"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs must not hold a chat_template: "
         "templates are chosen at launch"),
        ({"tool_choice": "required"}, 'tool_choice "required" needs tools'),
        ({"max_tokens": 500}, "the prompt has 20 tokens and 500 new ones were asked for, 520 in all, but the context "
         "length is 512"),
    ],
)  # fmt: skip
def test_mistakes_are_named(server: Live, body: dict[str, Any], message: str) -> None:
    response = server.post("/v1/chat/completions", {"messages": HI, **body})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message


def test_candidates_are_a_list_with_bytes_from_the_vocabulary() -> None:
    prompt = [*b"<user>hi", 258, *b"<assistant>"]
    with live([{"prompt": prompt, "tokens": [0xE6, 0x88, 0x91], "logprobs": [-0.5]}]) as server:
        content = chat(server, logprobs=True, top_logprobs=2, max_tokens=3)["choices"][0]["logprobs"]["content"]
        assert content[0]["token"] == r"bytes:\xe6"
        assert content[0]["bytes"] == [0xE6]
        assert [len(entry["top_logprobs"]) for entry in content] == [2, 2, 2]
