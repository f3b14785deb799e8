"""Tools: rendered as sent, calls read from the text in each model's form, or forced by a grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.live import Live, live
from tests.http.raw import frames
from zerokl.server.tools import PARSERS, CallPart, ToolParser
from zerokl.server.tools.calls import call_id
from zerokl.server.tools.forced import Named, Required

FIXTURES = [
    (path.stem, case) for path in sorted(Path(__file__).parent.joinpath("tools").glob("*.json"))
    for case in json.loads(path.read_text(encoding="utf-8"))
]  # fmt: skip
HI = [{"role": "user", "content": "hi"}]
ASKED = [*b"<user>hi", 258, *b"<assistant>"]
POINT = {"$defs": {"coordinate": {"type": "integer", "minimum": 0, "maximum": 9}}, "type": "object"}
POINT |= {"properties": {"x": {"$ref": "#/$defs/coordinate"}}, "required": ["x"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "point", "description": "d", "parameters": POINT}},
    {"type": "function", "function": {"name": "now"}},
]
NOW = {"type": "function", "function": {"name": "now"}}
POINT_CHOICE = {"type": "function", "function": {"name": "point"}}


def read(parser: ToolParser, pieces: list[str]) -> tuple[str, list[list[str]]]:
    """(content, [name, arguments] of each call)"""
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    calls: list[list[str]] = []
    for event in events:
        if isinstance(event, CallPart):
            if event.name is not None:
                calls.append([event.name, ""])
            assert event.index == len(calls) - 1
            calls[-1][1] += event.arguments
    return "".join(event for event in events if isinstance(event, str)), calls


@pytest.mark.parametrize(("form", "case"), FIXTURES)
def test_each_form_is_read_the_same_for_all_cuts(form: str, case: dict[str, Any]) -> None:
    text, expected = case["text"], (case["content"], case["calls"])
    assert read(PARSERS[form](), [text]) == expected
    assert read(PARSERS[form](), list(text)) == expected
    for place in range(len(text)):
        assert read(PARSERS[form](), [text[:place], text[place:]]) == expected


PIECES = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    '{"name":"a","arguments":{}}',
    "[",
    "]",
    "{",
    "}",
]
PIECES += ['"', "\\", " ", "\n", ";", ",", "x", "[ARGS]", "é", '"name":', "[[[[", "<tool", "_call>"]


@pytest.mark.parametrize("form", [*PARSERS, "required", "named"])
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12), cut=st.integers(1, 7))
def test_no_text_breaks_a_parser_and_no_cut_shows(form: str, pieces: list[str], cut: int) -> None:
    text = "".join(pieces)
    make = {"required": Required, "named": lambda: Named("f")}.get(form) or PARSERS[form]
    whole = read(make(), [text])
    assert read(make(), [text[place : place + cut] for place in range(0, len(text), cut)]) == whole


def test_ids_of_calls_are_a_function_of_answer_and_place() -> None:
    assert call_id("chatcmpl-1", 0, 0, 24) == call_id("chatcmpl-1", 0, 0, 24)
    assert len({call_id(answer, i, j, 24) for answer in ("a", "b") for i in range(2) for j in range(2)}) == 8
    assert len(call_id("a", 0, 0, 9)) == 9
    assert call_id("a", 0, 0, 9).isalnum()


# ---- over HTTP


@pytest.fixture(scope="module")
def hermes() -> Iterator[Live]:
    said = 'Hm. <tool_call>{"name": "now", "arguments": {}}</tool_call>'
    with live([{"prompt": ASKED, "tokens": [*said.encode(), 257]}], tool_call_parser="hermes") as running:
        yield running


def chat(server: Live, **body: Any) -> dict[str, Any]:
    response = server.post("/v1/chat/completions", {"messages": HI, "max_tokens": 200, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def streamed(server: Live, **body: Any) -> dict[str, Any]:
    """A stream's deltas put together as the message of a choice."""
    body = {"messages": HI, "max_tokens": 200, "temperature": 0, "stream": True, **body}
    content, calls, reason = "", dict[int, dict[str, Any]](), None
    for frame in frames(server.post("/v1/chat/completions", body).text):
        [choice] = frame["choices"]
        content += choice["delta"].get("content") or ""
        reason = choice["finish_reason"] or reason
        for part in choice["delta"].get("tool_calls", []):
            call = calls.setdefault(part["index"], {"id": part.get("id"), "name": None, "arguments": ""})
            call["name"] = part["function"].get("name", call["name"])
            call["arguments"] += part["function"]["arguments"]
    return {"content": content, "calls": list(calls.values()), "reason": reason}


def flat(choice: dict[str, Any]) -> dict[str, Any]:
    calls = [{"id": call["id"], **call["function"]} for call in choice["message"].get("tool_calls", [])]
    return {"content": choice["message"]["content"] or "", "calls": calls, "reason": choice["finish_reason"]}


def test_a_call_in_the_text_becomes_a_tool_call(hermes: Live) -> None:
    choice = chat(hermes, tools=TOOLS)
    call = {"id": call_id("chatcmpl-" + "0" * 32, 0, 0, 24), "type": "function"}
    call |= {"function": {"name": "now", "arguments": "{}"}}
    assert choice["message"] == {"role": "assistant", "content": "Hm.", "reasoning_content": None, "tool_calls": [call]}
    assert choice["finish_reason"] == "tool_calls"
    assert streamed(hermes, tools=TOOLS) == flat(choice)


@pytest.mark.parametrize("body", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_that_may_be_used_the_text_is_content(hermes: Live, body: dict[str, Any]) -> None:
    choice = chat(hermes, **body)
    assert choice["message"]["content"].endswith("</tool_call>")
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


def test_without_a_parser_calls_stay_in_the_content(server: Live) -> None:
    assert "tool_calls" not in chat(server, tools=TOOLS)["message"]
    assert chat(server, tools=TOOLS, tool_choice="auto") == chat(server)


def test_a_named_tool_is_called_with_arguments_that_fit(server: Live) -> None:
    choice = chat(server, tools=TOOLS, tool_choice=POINT_CHOICE)
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "point"
    assert json.loads(call["function"]["arguments"])["x"] in range(10)
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
    assert streamed(server, tools=TOOLS, tool_choice=POINT_CHOICE) == flat(choice)
    assert flat(chat(server, tools=TOOLS, tool_choice=NOW))["calls"][0]["arguments"].replace(" ", "").strip() == "{}"


def test_required_calls_some_of_the_tools(server: Live) -> None:
    finished = 0
    for seed in range(3):
        body = {"tools": TOOLS, "tool_choice": "required", "temperature": 1, "seed": seed, "max_tokens": 400}
        choice = chat(server, **body)
        calls = flat(choice)["calls"]
        finished += bool(calls) and choice["finish_reason"] != "length"
        assert calls or choice["finish_reason"] == "length"
        assert {call["name"] for call in calls} <= {"point", "now"}
        assert all(isinstance(json.loads(call["arguments"]), dict) for call in calls)
        assert streamed(server, **body) == flat(choice)
        one = flat(chat(server, **body, parallel_tool_calls=False))
        assert len(one["calls"]) == 1 or one["reason"] == "length"
    assert finished, "every answer was cut off by its length, so nothing was shown"


def test_arguments_that_are_cut_off_are_given_as_far_as_they_are(server: Live) -> None:
    choice = chat(server, tools=TOOLS, tool_choice=POINT_CHOICE, max_tokens=2)
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["tool_calls"][0]["function"]["arguments"]) == 2


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"tool_choice": "required"}, "tool_choice", '"required" needs tools'),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice", 'got "maybe"'),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice", "must be auto"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            'names "x"; the tools are point, now',
        ),
        ({"tools": [{"type": "function"}], "tool_choice": "required"}, "tools", "tools[0] must be"),
        ({"tools": [5], "tool_choice": "required"}, "tools", "tools[0] must be"),
        ({"tools": TOOLS, "tool_choice": "required", "regex": "a"}, "tool_choice", "tool_choice and regex"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}],
                "tool_choice": NOW,
            },
            "tool_choice",
            'names "now"',
        ),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}],
                "tool_choice": "required",
            },
            "json_schema",
            "Invalid type: x",
        ),
    ],
)
def test_a_tool_choice_that_can_not_be_kept_to_is_a_400(
    server: Live, body: dict[str, Any], param: str, words: str
) -> None:
    response = server.post("/v1/chat/completions", {"messages": HI, **body})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
