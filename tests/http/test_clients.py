"""Clients as people have them: the openai package and curl."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.http.live import Live, live
from tests.http.raw import frames
from zerokl.server.reference import URL, curl
from zerokl.server.routes import ROUTES


@pytest.fixture(scope="module")
def client(server: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


def test_openai_lists_the_model(client: openai.OpenAI) -> None:
    [model] = client.models.list().data
    assert client.models.retrieve(model.id) == model


def test_openai_completes_with_logprobs_and_our_extensions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="toy",
        prompt="ab",
        max_tokens=3,
        temperature=0,
        logprobs=2,
        echo=True,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    [choice] = answer.choices
    assert choice.text == "abxyz"
    assert choice.logprobs
    assert choice.logprobs.token_logprobs
    assert choice.logprobs.token_logprobs[-1] == -0.10000000149011612
    assert choice.model_extra == {"matched_stop": None, "token_ids": [120, 121, 122], "prompt_token_ids": [97, 98]}
    assert answer.usage
    assert answer.usage.completion_tokens == 3


def test_openai_streams_what_it_completes(client: openai.OpenAI) -> None:
    options = {"model": "toy", "prompt": "ab", "max_tokens": 3, "temperature": 0}
    chunks = list(client.completions.create(stream=True, stream_options={"include_usage": True}, **options))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "xyz"
    assert chunks[-1].usage
    assert chunks[-1].usage.prompt_tokens == 2


def test_openai_chats_and_streams_the_same(client: openai.OpenAI) -> None:
    options = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 6, "seed": 4}
    whole = client.chat.completions.create(logprobs=True, top_logprobs=2, **options)
    [choice] = whole.choices
    assert choice.logprobs
    assert choice.logprobs.content
    assert len(choice.logprobs.content) == 6
    assert len(choice.logprobs.content[0].top_logprobs) == 2
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(stream=True, **options)]
    assert "".join(delta.content or "" for delta in deltas) == choice.message.content
    assert all(delta.reasoning_content is None for delta in deltas)  # type: ignore[attr-defined]


def test_openai_reads_raw_headers_and_request_ids(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(model="toy", prompt="ab", max_tokens=1)
    assert raw.headers["x-zerokl-fingerprint"] == raw.parse().system_fingerprint == "fake"
    assert raw.headers["x-request-id"]


def test_openai_raises_its_classes_by_status(client: openai.OpenAI, server: Live) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="toy", prompt="")
    assert error.value.body == {
        "message": "prompt must not be empty",
        "type": "invalid_request_error",
        "param": "prompt",
        "code": None,
    }
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with live(api_key=("right",)) as keyed:
        wrong = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="wrong", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            wrong.models.list()
        assert wrong.with_options(api_key="right").models.list().data


def test_openai_sees_an_error_in_the_middle_of_a_stream() -> None:
    script = [{"prompt": list(b"ab"), "tokens": [120], "fail": True}]
    with live(script, engine={"step_ms": 10.0}) as failing:
        client = openai.OpenAI(base_url=f"{failing.url}/v1", api_key="any", max_retries=0)
        stream = client.completions.create(model="toy", prompt="ab", max_tokens=9, temperature=0, stream=True)
        assert next(stream).choices[0].text == "x"
        with pytest.raises(openai.APIError):
            list(stream)


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def run_curl(*arguments: str) -> str:
    return subprocess.run(["curl", "-sS", *arguments], capture_output=True, text=True, timeout=30, check=True).stdout


@needs_curl
def test_curl_posts_without_a_content_type(server: Live) -> None:
    body = json.dumps({"text": "ab", "sampling_params": {"temperature": 0, "max_new_tokens": 3}})
    assert json.loads(run_curl(f"{server.url}/generate", "-d", body))["text"] == "xyz"


@needs_curl
def test_curl_streams(server: Live) -> None:
    body = json.dumps({"prompt": "ab", "max_tokens": 3, "temperature": 0, "stream": True})
    text = run_curl("-N", f"{server.url}/v1/completions", "-d", body)
    assert "".join(frame["choices"][0]["text"] for frame in frames(text)) == "xyz"


@needs_curl
def test_every_curl_line_of_the_reference_works(server: Live) -> None:
    """As a shell runs it, with a word more that prints the status."""
    for route in ROUTES:
        line = curl(route).replace(URL, server.url).replace("[504,1234]", "[104,105]")
        told = line.replace("curl ", "curl -o /dev/null -w '%{http_code}' ", 1)
        status = subprocess.run(["sh", "-c", told], capture_output=True, text=True, timeout=20, check=False).stdout
        assert status == ("400" if route.path == "/update_weights_from_disk" else "200"), line


class Weather(pydantic.BaseModel):
    city: Literal["Bern", "Rom"]
    degrees: int = pydantic.Field(ge=-9, le=9)


def test_openai_parses_structured_output_into_a_model(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    answer = client.chat.completions.parse(model="toy", messages=messages, response_format=Weather, max_tokens=300)
    assert isinstance(answer.choices[0].message.parsed, Weather)
    with client.chat.completions.stream(
        model="toy", messages=messages, response_format=Weather, max_tokens=300
    ) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed


def test_openai_parses_a_forced_tool_call(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Weather)
    choice: Any = {"type": "function", "function": {"name": "Weather"}}
    messages: Any = [{"role": "user", "content": "hi"}]
    options: Any = {"model": "toy", "messages": messages, "tools": [tool], "tool_choice": choice, "max_tokens": 300}
    answer = client.chat.completions.parse(**options)
    [call] = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)
    with client.chat.completions.stream(**options) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    [streamed] = final.choices[0].message.tool_calls or []
    assert (streamed.id, streamed.function) == (call.id, call.function)
    assert final.choices[0].finish_reason == "tool_calls"
