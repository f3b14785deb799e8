"""Cases of /v1/completions and /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.http.parity.exchanges import Case

GREEDY = {"temperature": 0, "max_tokens": 3}
HI = [{"role": "user", "content": "hi"}]
ECHO = {"prompt": "ab", **GREEDY, "echo": True}


def completion(why: str, **body: Any) -> Case:
    return Case(why, "POST", "/v1/completions", body)


def chat(why: str, messages: Any = HI, **body: Any) -> Case:
    return Case(why, "POST", "/v1/chat/completions", {"messages": messages, **body})


def completions() -> Iterator[Case]:
    yield completion("a text", prompt="ab", **GREEDY)
    yield completion("defaults: 16 tokens, drawn", prompt="ab")
    yield completion("texts", prompt=["ab", "stop"], **GREEDY)
    yield completion("ids", prompt=[97, 98], **GREEDY)
    yield completion("lists of ids", prompt=[[97, 98], [5]], **GREEDY)
    yield completion("samples of texts", prompt=["ab", "cd"], n=2, max_tokens=2, seed=5)
    for value in ("", [], [""], [[]], ["a", ""], [[1], []]):
        yield completion(f"an empty prompt, {value!r}", prompt=value)
    for value in (5, None, ["a", 5], [1, [2]], [["a"]], [True], {"a": 1}, [1.0]):
        yield completion(f"no prompt, {value!r}", prompt=value)
    yield completion("the prompt is missing")
    yield completion("a model's name comes back", prompt="ab", model="gpt", **GREEDY)
    yield completion("an empty model name is ours", prompt="ab", model="", **GREEDY)
    yield completion("echo", **ECHO)
    yield completion("echo of ids without special tokens", prompt=[256, 97, 257], **GREEDY, echo=True)
    yield completion("echo with scores", **ECHO, logprobs=2)
    yield completion("echo of nothing new: scoring", prompt="ab", max_tokens=0, echo=True, logprobs=1)
    yield completion("as lm-eval scores", prompt=[[104, 105, 106]], max_tokens=1, echo=True, logprobs=1, temperature=0)
    yield completion("logprobs 0 is a request", prompt="ab", **GREEDY, logprobs=0)
    yield completion("logprobs of pieces of characters", prompt="zh", max_tokens=9, temperature=0, logprobs=1)
    yield completion("-inf is -9999", prompt="never", max_tokens=1, temperature=0, logprobs=1)
    yield completion("tokens as ids", prompt="ab", **GREEDY, logprobs=2, return_tokens_as_token_ids=True)
    yield completion("ids beside texts", prompt="ab", **GREEDY, return_token_ids=True, n=2)
    yield completion("more logprobs than may be", prompt="ab", logprobs=101)
    yield completion("logprobs true is no number", prompt="ab", logprobs=True)
    yield completion("best_of equal to n", prompt="ab", **GREEDY, best_of=1)
    yield completion("best_of above n", prompt="ab", best_of=2)
    yield completion("a suffix", prompt="ab", suffix="x")
    yield completion("an empty suffix is none", prompt="ab", suffix="", **GREEDY)
    yield completion("a stop", prompt="stop", max_tokens=7, temperature=0, stop=["."])
    yield completion("a stop id that matched", prompt="ab", **GREEDY, stop_token_ids=[121])
    yield completion(
        "a stop id counts though the end is ignored", prompt="ab", **GREEDY, ignore_eos=True, stop_token_ids=[121]
    )
    yield completion("a regex that matched", prompt="stop", max_tokens=7, temperature=0, stop_regex="[.]")
    yield completion(
        "all extensions at once",
        prompt="ab",
        max_tokens=2,
        top_k=3,
        min_p=0.1,
        min_tokens=1,
        repetition_penalty=1.1,
        ignore_eos=True,
        skip_special_tokens=False,
        cache_salt="s",
        priority=3,
        seed=2,
    )
    yield completion("min above max", prompt="ab", max_tokens=2, min_tokens=3)
    yield completion("a name", prompt="ab", **GREEDY, rid="mine")
    yield completion("too long with its code", prompt=[5] * 512)
    yield completion("too long together", prompt="ab", max_tokens=511)
    yield completion(
        "a grammar by response_format",
        prompt="q",
        max_tokens=20,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [1]}}},
    )
    yield completion(
        "any JSON object", prompt="q", max_tokens=4, temperature=0, response_format={"type": "json_object"}
    )
    yield completion("plain text", prompt="ab", **GREEDY, response_format={"type": "text"})
    yield completion(
        "a structural tag",
        prompt="q",
        max_tokens=3,
        temperature=0,
        response_format={
            "type": "structural_tag",
            "structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}],
            "triggers": ["<f"],
        },
    )
    yield completion("a format without a type", prompt="q", response_format={})
    yield completion("a format nobody knows", prompt="q", response_format={"type": "xml"})
    yield completion("a schema is missing", prompt="q", response_format={"type": "json_schema"})
    yield completion(
        "a schema that is a list", prompt="q", response_format={"type": "json_schema", "json_schema": {"schema": [1]}}
    )
    yield completion(
        "a schema of null", prompt="q", response_format={"type": "json_schema", "json_schema": {"schema": None}}
    )
    yield completion("two grammars", prompt="q", regex="a", response_format={"type": "json_object"})
    yield completion("a schema that can't be kept", prompt="q", json_schema={"not": {}})
    yield completion("a stream", prompt="ab", **GREEDY, stream=True)
    yield completion("a stream with usage", prompt="ab", **GREEDY, stream=True, stream_options={"include_usage": True})
    yield completion(
        "a stream with usage in all chunks",
        prompt="ab",
        **GREEDY,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    yield completion("a stream with echo and scores", **ECHO, stream=True, logprobs=2, return_token_ids=True)
    yield completion("a stream of held characters", prompt="zh", max_tokens=9, temperature=0, stream=True, logprobs=1)
    yield completion("a stream that a stop ends", prompt="stop", max_tokens=7, temperature=0, stream=True, stop=["wo"])
    yield completion("a stream of scores alone", prompt="ab", max_tokens=0, echo=True, logprobs=1, stream=True)
    yield completion("stream options of a wrong type", prompt="ab", stream=True, stream_options=5)
    yield completion("a stream option of a wrong type", prompt="ab", stream_options={"include_usage": 1})
    yield completion("stream options that nobody knows are ignored", prompt="ab", **GREEDY, stream_options={"x": 1})
    yield completion("the first bad field, in table order", prompt="ab", seed="x", n=0)
    yield completion("a bias and a penalty", prompt="ab", **GREEDY, logit_bias={"97": 100}, presence_penalty=2)
    yield completion("a bias out of the vocabulary", prompt="ab", logit_bias={"300": 1})
    yield completion("two ids of one text: the likelier stays", prompt="cut", max_tokens=2, temperature=0, logprobs=20)


def conversations() -> Iterator[Case]:
    yield chat("one message", **GREEDY)
    yield chat("no limit: the rest of the context", messages=[{"role": "user", "content": "x" * 480}], temperature=0)
    yield chat("max_completion_tokens wins", max_completion_tokens=2, max_tokens=5, temperature=0)
    yield chat(
        "all roles",
        messages=[{"role": role, "content": role} for role in ("system", "developer", "user", "assistant", "tool")],
        **GREEDY,
    )
    yield chat(
        "parts are joined",
        messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        **GREEDY,
    )
    yield chat("a content of null", messages=[{"role": "assistant", "content": None}], **GREEDY)
    yield chat("no content", messages=[{"role": "assistant"}], **GREEDY)
    yield chat("samples", n=3, seed=1, max_tokens=2)
    yield chat("logprobs", **GREEDY, logprobs=True)
    yield chat("logprobs with candidates", **GREEDY, logprobs=True, top_logprobs=2)
    yield chat("candidates named by ids", **GREEDY, logprobs=True, top_logprobs=2, return_tokens_as_token_ids=True)
    yield chat("candidates without logprobs", top_logprobs=2)
    yield chat("candidates 0 without logprobs", **GREEDY, top_logprobs=0)
    yield chat("candidates past the most", logprobs=True, top_logprobs=21)
    yield chat("ids beside the text", **GREEDY, return_token_ids=True)
    yield chat(
        "the last message goes on",
        messages=[*HI, {"role": "assistant", "content": " Once "}],
        continue_final_message=True,
        **GREEDY,
    )
    yield chat("no turn is opened", add_generation_prompt=False, **GREEDY)
    yield chat(
        "variables for the template", chat_template_kwargs={"x": [1, None, 2.5]}, reasoning_effort="low", **GREEDY
    )
    yield chat("a template in the request", chat_template_kwargs={"chat_template": "x"})
    yield chat(
        "variables may replace the messages",
        chat_template_kwargs={"messages": [{"role": "user", "content": "other"}]},
        **GREEDY,
    )
    for value in (None, [], "x", {"role": "user"}):
        yield chat(f"no messages, {value!r}", messages=value)
    for value in (
        5,
        None,
        {},
        {"role": "x"},
        {"role": None, "content": "a"},
        {"role": "user", "content": 5},
        {"role": "user", "content": {"a": 1}},
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": ["a"]},
    ):
        yield chat(f"a message that is none, {value!r}", messages=[*HI, value])
    yield chat("a bad value longer than errors show", messages=[{"role": "é" * 100}])
    yield chat(
        "a stop",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=9,
        temperature=0,
        stop=["a", "e", "i", "o", "u"],
    )
    yield chat(
        "a schema",
        max_tokens=30,
        temperature=0,
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "n",
                "schema": {
                    "type": "object",
                    "properties": {"a": {"enum": [1]}},
                    "required": ["a"],
                    "additionalProperties": False,
                },
            },
        },
    )
    yield chat("a stream", **GREEDY, stream=True)
    yield chat("a stream of logprobs", **GREEDY, stream=True, logprobs=True, top_logprobs=1)
    yield chat("a stream with usage", **GREEDY, stream=True, stream_options={"include_usage": True})
    yield chat(
        "a stream with usage in all chunks", **GREEDY, stream=True, stream_options={"continuous_usage_stats": True}
    )
    yield chat("a stream with ids", **GREEDY, stream=True, return_token_ids=True)
    yield chat("a stream of nothing", max_tokens=0, stream=True)
    yield chat("an answer of nothing", max_tokens=0)
    yield chat("a stream that can't begin", stream=True, regex="(")
    yield chat("a name", rid="mine", **GREEDY)
    yield chat("a model's name", model="other", **GREEDY)
    yield chat("too long", messages=[{"role": "user", "content": "x" * 600}])
    yield chat("processed fields in order", n="1", messages=5)
    yield chat("user and other strangers are ignored", user="u", metadata={"a": 1}, store=True, **GREEDY)
    yield chat("min_tokens past the limit", min_tokens=9, max_tokens=3)
    yield chat(
        "a text in a script of two directions", messages=[{"role": "user", "content": "שלום العالم 👩‍👩‍👧"}], **GREEDY
    )


TOOL = {
    "type": "function",
    "function": {
        "name": "point",
        "parameters": {
            "$defs": {"c": {"enum": [1, 2]}},
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/c"}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "point"}}


def tools() -> Iterator[Case]:
    asked: dict[str, Any] = {"tools": [TOOL, NOW], "max_tokens": 200, "temperature": 0}
    yield chat("tools that nobody forces", tools=[TOOL], **GREEDY)
    yield chat("tools that must not be used", tools=[TOOL], tool_choice="none", **GREEDY)
    yield chat("tools of choice", tools=[TOOL], tool_choice="auto", **GREEDY)
    yield chat("a named tool is called", **asked, tool_choice=NAMED)
    yield chat("a named tool in a stream", **asked, tool_choice=NAMED, stream=True)
    yield chat("a tool without parameters", **asked, tool_choice={"type": "function", "function": {"name": "now"}})
    yield chat("some tool is called, once", **asked, tool_choice="required", parallel_tool_calls=False)
    yield chat("some tools in a stream", **asked, tool_choice="required", parallel_tool_calls=False, stream=True)
    yield chat("a call that is cut off is content", tools=[TOOL], tool_choice="required", max_tokens=5, temperature=0)
    yield chat("a named call that is cut off", tools=[TOOL], tool_choice=NAMED, max_tokens=2, temperature=0)
    yield chat("a named call of no tokens", tools=[TOOL], tool_choice=NAMED, max_tokens=0)
    yield chat("samples of calls", tools=[TOOL], tool_choice=NAMED, max_tokens=40, n=2, seed=1)
    yield chat("forced without tools", tool_choice="required")
    yield chat("a name that no tool has", tools=[TOOL], tool_choice={"type": "function", "function": {"name": "x"}})
    yield chat("forced and a grammar", tools=[TOOL], tool_choice="required", regex="a")
    for value in (
        "any",
        {"type": "x"},
        {"type": "function"},
        {"type": "function", "function": {"name": ""}},
        {"type": "function", "function": []},
    ):
        yield chat(f"a choice that is none, {value!r}", tools=[TOOL], tool_choice=value)
    for value in (
        5,
        {},
        {"type": "function"},
        {"function": {"name": 5}},
        {"function": {"name": "f", "parameters": [1]}},
        {"function": {"name": ""}},
    ):
        yield chat(f"a tool that is none, {value!r}", tools=[value], tool_choice="required")
    for value in (None, {}, [], 0, ""):
        yield chat(
            f"parameters {value!r} are none",
            tools=[{"function": {"name": "f", "parameters": value}}],
            tool_choice="required",
            max_tokens=90,
            temperature=0,
        )
    yield chat("an empty list of tools", tools=[])


def all_cases() -> list[Case]:
    return [*completions(), *conversations(), *tools()]
