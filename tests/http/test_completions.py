"""/v1/completions: whole bodies, prompts in four forms, echo, scoring, logprobs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.live import Live, live
from tests.http.toy import BOS

GREEDY = {"temperature": 0, "max_tokens": 3}


def complete(server: Live, **body: Any) -> Any:
    response = server.post("/v1/completions", {**GREEDY, **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_whole_body(server: Live) -> None:
    response = server.post("/v1/completions", {"model": "any", "prompt": "ab", **GREEDY})
    assert response.content == (
        b'{"id":"cmpl-00000000000000000000000000000000","object":"text_completion","created":1700000000,"model":"any",'
        b'"choices":[{"index":0,"text":"xyz","logprobs":null,"finish_reason":"length","matched_stop":null}],'
        b'"usage":{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":0},'
        b'"completion_tokens_details":null},"system_fingerprint":"fake"}'
    )


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [97, 98], [[97, 98]]])
def test_a_prompt_has_four_forms(server: Live, prompt: Any) -> None:
    assert complete(server, prompt=prompt)["choices"][0]["text"] == "xyz"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt must not be empty"),
        ([], "prompt must not be empty"),
        (["a", ""], "prompt[1] must not be empty"),
        ([[1], []], "prompt[1] must not be empty"),
        ([1, 999], "prompt[1] must be a token id from 0 to 258, got 999"),
    ],
)
def test_an_empty_or_foreign_prompt_is_refused(server: Live, prompt: Any, message: str) -> None:
    response = server.post("/v1/completions", {"prompt": prompt})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message


@pytest.mark.parametrize("prompt", [None, 1, {"a": 1}, ["a", 1], [[1], "a"], [["a"]]])
def test_a_prompt_of_another_form_is_refused(server: Live, prompt: Any) -> None:
    assert server.post("/v1/completions", {"prompt": prompt}).status_code == 400


def test_the_index_is_prompt_times_n_plus_sample(server: Live) -> None:
    body = complete(server, prompt=["ab", "hello"], n=2, temperature=1, seed=5)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    alone = complete(server, prompt="hello", n=2, temperature=1, seed=5)
    assert [choice["text"] for choice in body["choices"][2:]] == [choice["text"] for choice in alone["choices"]]
    assert body["usage"]["prompt_tokens"] == 2 + 5
    assert body["usage"]["completion_tokens"] == 4 * 3


def test_echo_with_logprobs_covers_prompt_and_output(server: Live) -> None:
    choice = complete(server, prompt="ab", echo=True, logprobs=1)["choices"][0]
    assert choice["text"] == "abxyz"
    logprobs = choice["logprobs"]
    assert list(logprobs) == ["text_offset", "token_logprobs", "tokens", "top_logprobs"]
    assert logprobs["tokens"] == ["a", "b", "x", "y", "z"]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][2:] == [-0.5, -1.25, -0.10000000149011612]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][2] == {"x": -0.5}


def test_scoring_with_max_tokens_0(server: Live) -> None:
    choice = complete(server, prompt="hello", echo=True, logprobs=1, max_tokens=0)["choices"][0]
    assert choice["text"] == "hello"
    assert len(choice["logprobs"]["tokens"]) == 5
    assert choice["finish_reason"] == "length"
    scored = server.generate(
        text="hello", sampling_params={"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0
    )
    native = [entry[0] for entry in scored["meta_info"]["input_token_logprobs"]]
    assert choice["logprobs"]["token_logprobs"] == native


def test_the_request_of_lm_eval(server: Live) -> None:
    """It sums token_logprobs[ctxlen:-1] and asks whether each token is the likeliest by float equality."""
    ids = list(b"tenth")
    choice = complete(server, prompt=[ids], echo=True, logprobs=1, max_tokens=1)["choices"][0]["logprobs"]
    assert len(choice["tokens"]) == len(ids) + 1
    assert None not in choice["token_logprobs"][1:]
    last, top = choice["token_logprobs"][-1], choice["top_logprobs"][-1]
    assert last == max(top.values()) == -0.10000000149011612


def test_logprobs_0_is_a_request_without_candidates(server: Live) -> None:
    logprobs = complete(server, prompt="ab", logprobs=0)["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == []
    assert logprobs["token_logprobs"] == [-0.5, -1.25, -0.10000000149011612]
    assert complete(server, prompt="ab", logprobs=None)["choices"][0]["logprobs"] is None


def test_a_bos_that_we_added_is_the_first_token_and_counts() -> None:
    with live(add_bos=True) as server:
        body = complete(server, prompt="ab", echo=True, logprobs=1)
        choice = body["choices"][0]
        assert choice["logprobs"]["tokens"][:3] == ["<s>", "a", "b"]
        assert choice["text"].startswith("ab")
        assert body["usage"]["prompt_tokens"] == 3
        ids = complete(server, prompt=[BOS, 97, 98], echo=True, logprobs=1)["choices"][0]
        assert ids == choice
        bare = server.generate(input_ids=[97, 98], sampling_params={"max_new_tokens": 0})
        assert bare["meta_info"]["prompt_tokens"] == 2


def test_token_ids_come_when_asked(server: Live) -> None:
    choice = complete(server, prompt="ab", return_token_ids=True)["choices"][0]
    assert choice["token_ids"] == [120, 121, 122]
    assert choice["prompt_token_ids"] == [97, 98]


def test_tokens_as_ids_are_never_ambiguous(server: Live) -> None:
    logprobs = complete(server, prompt="ab", logprobs=1, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["token_id:120", "token_id:121", "token_id:122"]
    assert list(logprobs["top_logprobs"][0]) == ["token_id:120"]


def test_a_matched_stop_is_named(server: Live) -> None:
    choice = complete(server, prompt="stop", max_tokens=9, stop="e.t")["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["matched_stop"]) == ("on", "stop", "e.t")
    choice = complete(server, prompt="end", max_tokens=9)["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["matched_stop"]) == ("hi", "stop", 257)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "prompt must be a string, a list of strings, a list of token ids or a list of such lists, got null"),
        ({"prompt": "a", "best_of": 2}, "best_of must equal n (1), got 2"),
        ({"prompt": "a", "suffix": "b"}, "suffix is not supported: the model has no fill-in template"),
        ({"prompt": "a", "logprobs": 101}, "logprobs must be at most 100, got 101"),
        ({"prompt": "a", "logprobs": True}, "logprobs must be an integer of at least 0, or null, got true"),
        ({"prompt": "a", "n": 0}, "n must be an integer from 1 to 128, got 0"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens must be an integer of at least 0, got -1"),
        ({"prompt": ["a"] * 4097}, "prompts times n must be at most 4096, got 4097 x 1 = 4097"),
    ],
)
def test_mistakes_are_named(server: Live, body: dict[str, Any], message: str) -> None:
    response = server.post("/v1/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message


def test_what_benchmarks_send_along_is_taken(server: Live) -> None:
    complete(server, prompt="ab", best_of=1, ignore_eos=True, stop=None, logprobs=None, user="me", suffix=None)


def test_defaults_are_16_tokens_and_one_choice(server: Live) -> None:
    body = server.post("/v1/completions", {"prompt": "q", "ignore_eos": True}).json()
    assert body["usage"]["completion_tokens"] == 16
    assert len(body["choices"]) == 1
