"""/generate without a stream: whole bodies, and every option of the page."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.live import Live
from tests.http.toy import EOS

GREEDY = {"temperature": 0, "max_new_tokens": 3}
ID = "0" * 32


def test_a_text_prompt_gives_one_object(server: Live) -> None:
    response = server.post("/generate", {"text": "ab", "sampling_params": GREEDY})
    assert response.content == (
        b'{"text":"xyz","output_ids":[120,121,122],"meta_info":{"id":"' + ID.encode() + b'",'
        b'"finish_reason":{"type":"length","length":3},"prompt_tokens":2,"weight_version":"default",'
        b'"completion_tokens":3,"cached_tokens":0,"e2e_latency":0.0}}'
    )


def test_ids_and_text_are_the_same_prompt(server: Live) -> None:
    by_text = server.generate(text="ab", sampling_params=GREEDY)
    assert server.generate(input_ids=[97, 98], sampling_params=GREEDY) == by_text


def test_a_list_gives_an_array_even_of_one(server: Live) -> None:
    [one] = server.generate(text=["ab"], sampling_params=GREEDY)
    assert one["text"] == "xyz"
    [one] = server.generate(input_ids=[[97, 98]], sampling_params=GREEDY)
    assert one["text"] == "xyz"


def test_put_works_like_post(server: Live) -> None:
    response = server.client.put("/generate", json={"text": "ab", "sampling_params": GREEDY})
    assert response.json()["text"] == "xyz"


def test_logprobs_of_the_prompt_and_the_output(server: Live) -> None:
    body = server.generate(
        text="ab",
        sampling_params=GREEDY,
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=2,
        token_ids_logprob=[97, 5],
        return_text_in_logprobs=True,
    )
    meta = body["meta_info"]
    assert list(meta) == [
        "id",
        "finish_reason",
        "prompt_tokens",
        "weight_version",
        "input_token_logprobs",
        "output_token_logprobs",
        "output_token_logprobs_length",
        "input_top_logprobs",
        "output_top_logprobs",
        "input_token_ids_logprobs",
        "output_token_ids_logprobs",
        "completion_tokens",
        "cached_tokens",
        "e2e_latency",
    ]
    assert meta["input_token_logprobs"][0] == [None, 97, "a"]
    assert meta["input_token_logprobs"][1][1:] == [98, "b"]
    assert meta["output_token_logprobs"] == [[-0.5, 120, "x"], [-1.25, 121, "y"], [-0.10000000149011612, 122, "z"]]
    assert meta["output_token_logprobs_length"] == 3
    assert meta["input_top_logprobs"][0] is None
    assert [len(row) for row in meta["output_top_logprobs"]] == [2, 2, 2]
    assert [entry[1] for entry in meta["output_token_ids_logprobs"][0]] == [97, 5]
    assert meta["input_token_ids_logprobs"][0] is None


def test_logprob_keys_are_absent_unless_asked(server: Live) -> None:
    plain = server.generate(text="ab", sampling_params=GREEDY, top_logprobs_num=3)["meta_info"]
    assert not [key for key in plain if "logprob" in key]
    asked = server.generate(text="ab", sampling_params=GREEDY, return_logprob=True)["meta_info"]
    assert asked["input_token_logprobs"] == []
    assert [key for key in asked if "top" in key or "ids" in key] == []
    assert asked["output_token_logprobs"][0] == [-0.5, 120, None]


@pytest.mark.parametrize("start", [0, 1, 4, 5])
def test_input_entries_run_from_the_start_to_the_prompts_end_and_the_first_is_null(server: Live, start: int) -> None:
    body = server.generate(text="hello", sampling_params=GREEDY, return_logprob=True, logprob_start_len=start)
    entries = body["meta_info"]["input_token_logprobs"]
    assert [entry[1] for entry in entries] == list(b"hello")[start:]
    assert [entry[0] is None for entry in entries] == [True, False, False, False, False][: 5 - start]


def test_a_start_past_the_prompt_is_refused_with_both_numbers(server: Live) -> None:
    response = server.post("/generate", {"text": "ab", "return_logprob": True, "logprob_start_len": 3})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "logprob_start_len must be at most the prompt's 2 tokens, got 3"


def test_scores_alone_with_max_new_tokens_0(server: Live) -> None:
    body = server.generate(
        text="hello", sampling_params={"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0
    )
    assert body["text"] == ""
    assert body["output_ids"] == []
    assert body["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert body["meta_info"]["output_token_logprobs"] == []
    assert len(body["meta_info"]["input_token_logprobs"]) == 5


def test_scored_and_generated_tokens_have_the_same_logprobs(server: Live) -> None:
    made = server.generate(text="hello", sampling_params=GREEDY, return_logprob=True, top_logprobs_num=3)
    ids = [*b"hello", *made["output_ids"]]
    scored = server.generate(
        input_ids=ids,
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=3,
    )
    assert scored["meta_info"]["input_token_logprobs"][5:] == made["meta_info"]["output_token_logprobs"]
    assert scored["meta_info"]["input_top_logprobs"][5:] == made["meta_info"]["output_top_logprobs"]


def test_a_prompt_as_long_as_the_context_can_be_scored_but_not_continued(server: Live) -> None:
    ids = [97] * 512
    scored = server.generate(
        input_ids=ids, sampling_params={"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0
    )
    assert len(scored["meta_info"]["input_token_logprobs"]) == 512
    response = server.post("/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": 1}})
    assert response.status_code == 400


def test_prompt_token_ids_come_when_asked(server: Live) -> None:
    assert server.generate(text="ab", sampling_params=GREEDY, return_prompt_token_ids=True)["prompt_token_ids"] == [
        97,
        98,
    ]


def test_n_samples_stand_prompt_major_and_differ(server: Live) -> None:
    sampling = {"n": 3, "max_new_tokens": 8, "sampling_seed": 7}
    answers = server.generate(text=["hello", "world"], sampling_params=sampling)
    assert len(answers) == 6
    assert len({answer["text"] for answer in answers[:3]}) == 3
    assert server.generate(text="hello", sampling_params=sampling) == answers[:3]
    assert server.generate(text=["world"], sampling_params=sampling) == answers[3:]


def test_an_unseeded_request_repeats_exactly_and_names_its_seed(server: Live) -> None:
    bodies = [server.post("/generate", {"text": "hello", "sampling_params": {"max_new_tokens": 8}}) for _ in "12"]
    assert bodies[0].content == bodies[1].content
    seed = int(bodies[0].headers["x-zerokl-seed"])
    seeded = {"text": "hello", "sampling_params": {"max_new_tokens": 8, "sampling_seed": seed}}
    assert server.post("/generate", seeded).content == bodies[0].content


def test_a_batch_names_one_seed_per_prompt(server: Live) -> None:
    alone = [server.post("/generate", {"text": text}).headers["x-zerokl-seed"] for text in ("one", "two")]
    both = server.post("/generate", {"text": ["one", "two"], "sampling_params": {"n": 2}})
    assert both.headers["x-zerokl-seed"] == ",".join(alone)


def test_options_per_prompt(server: Live) -> None:
    answers = server.generate(
        text=["ab", "hello", "ab"],
        sampling_params=[GREEDY, {**GREEDY, "max_new_tokens": 1}, {**GREEDY, "stop": ["y"]}],
        return_logprob=[True, False, True],
        logprob_start_len=[0, -1, 1],
        top_logprobs_num=[0, 0, 2],
        token_ids_logprob=[[1], [], [2, 3]],
    )
    first, second, third = (answer["meta_info"] for answer in answers)
    assert [len(answer["output_ids"]) for answer in answers] == [3, 1, 2]
    assert "output_token_logprobs" not in second
    assert len(first["input_token_logprobs"]) == 2
    assert "output_top_logprobs" not in first
    assert len(third["input_token_logprobs"]) == 1
    assert len(third["output_top_logprobs"][0]) == 2
    assert [entry[1] for entry in third["output_token_ids_logprobs"][0]] == [2, 3]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"return_logprob": [True]}, "return_logprob has 1 entries for 2 prompts"),
        ({"logprob_start_len": [0, 0, 0]}, "logprob_start_len has 3 entries for 2 prompts"),
        ({"token_ids_logprob": [[1]]}, "token_ids_logprob has 1 entries for 2 prompts"),
        ({"sampling_params": [{}]}, "sampling_params has 1 entries for 2 prompts"),
        ({"rid": ["a"]}, "rid has 1 entries for 2 prompts"),
        ({"rid": ["a", "a"]}, 'rid "a" is used twice in this request'),
        ({"top_logprobs_num": [1, "x"]}, 'top_logprobs_num[1] must be an integer from 0 to 1024, got "x"'),
        (
            {"sampling_params": [{}, {"top_p": 2}]},
            "sampling_params[1].top_p must be a number above 0 and at most 1, got 2",
        ),
        ({"sampling_params": [{"n": 1}, {"n": 2}]}, "n must be the same for every prompt of a batch, got 2"),
        (
            {"sampling_params": {"n": 2}, "return_logprob": [True, True]},
            "return_logprob must not be a list when n > 1",
        ),
        (
            {"sampling_params": {"n": 128}, "text": ["a"] * 33},
            "prompts times n must be at most 4096, got 33 x 128 = 4224",
        ),
    ],
)
def test_per_prompt_mistakes_are_named(server: Live, body: dict[str, Any], message: str) -> None:
    response = server.post("/generate", {"text": ["a", "b"], **body})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "exactly one of text and input_ids must be given, got neither"),
        ({"text": "a", "input_ids": [1]}, "exactly one of text and input_ids must be given, got both"),
        ({"text": ""}, "text must not be empty"),
        ({"text": []}, "text must not be empty"),
        ({"text": ["a", ""]}, "text[1] must not be empty"),
        ({"input_ids": []}, "input_ids must not be empty"),
        ({"input_ids": [[1], []]}, "input_ids[1] must not be empty"),
        ({"input_ids": [1, 259]}, "input_ids[1] must be a token id from 0 to 258, got 259"),
        ({"input_ids": [-1]}, "input_ids[0] must be a token id from 0 to 258, got -1"),
        ({"input_ids": [[1, 2], [3, 999]]}, "input_ids[1][1] must be a token id from 0 to 258, got 999"),
        ({"input_ids": [1, True]}, "input_ids[1] must be an integer token id, got true"),
        ({"input_ids": [1, 2.0]}, "input_ids[1] must be an integer token id, got 2.0"),
        ({"input_ids": [1, "2"]}, 'input_ids[1] must be an integer token id, got "2"'),
        ({"input_ids": [1, None]}, "input_ids[1] must be an integer token id, got null"),
        ({"text": "a", "token_ids_logprob": [300]}, "token_ids_logprob[0] must be a token id from 0 to 258, got 300"),
        (
            {"text": "a", "sampling_params": {"stop_token_ids": [1, -4]}},
            "sampling_params.stop_token_ids[1] must be a token id from 0 to 2147483647, got -4",
        ),
        (
            {"text": "a", "sampling_params": {"logit_bias": {"259": 1}}},
            'sampling_params.logit_bias["259"] must be a token id from 0 to 258, got 259',
        ),
        (
            {"input_ids": [1] * 512},
            "the prompt has 512 tokens, but the context length is 512",
        ),
        (
            {"input_ids": [1] * 500, "sampling_params": {"max_new_tokens": 13}},
            "the prompt has 500 tokens and 13 new ones were asked for, 513 in all, but the context length is 512",
        ),
        (
            {"text": "a", "sampling_params": {"max_new_tokens": 1, "min_new_tokens": 2}},
            "min_new_tokens must be at most max_new_tokens (1), got 2",
        ),
        (
            {"text": "a", "sampling_params": {"regex": "a", "json_schema": "{}"}},
            "at most one of json_schema, regex, ebnf and structural_tag may be given, got json_schema and regex",
        ),
    ],
)
def test_mistakes_are_named_with_the_value_given_and_what_is_allowed(
    server: Live, body: dict[str, Any], message: str
) -> None:
    response = server.post("/generate", body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["message"] == message
    assert error["type"] == "invalid_request_error"
    assert error["code"] == ("context_length_exceeded" if "context length" in message else None)


def test_output_ids_hold_the_stop_token_and_the_text_does_not(server: Live) -> None:
    body = server.generate(text="end", sampling_params={"temperature": 0, "max_new_tokens": 9}, return_logprob=True)
    assert body["text"] == "hi"
    assert body["output_ids"] == [*b"hi", EOS]
    assert body["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS}
    assert body["meta_info"]["completion_tokens"] == 3
    assert len(body["meta_info"]["output_token_logprobs"]) == 3


def test_a_stop_string_ends_the_text_before_it(server: Live) -> None:
    stops: list[tuple[dict[str, Any], str, Any]] = [
        ({"stop": "."}, "one", "."),
        ({"stop": ["two", "e."]}, "on", "e."),
        ({"stop": ".", "no_stop_trim": True}, "one.", "."),
        ({"stop_token_ids": [ord("n")]}, "o", ord("n")),
        ({"stop_regex": "[.]t"}, "one", "[.]t"),
    ]
    for params, text, matched in stops:
        body = server.generate(text="stop", sampling_params={"temperature": 0, "max_new_tokens": 7, **params})
        assert body["text"] == text
        assert body["meta_info"]["finish_reason"] == {"type": "stop", "matched": matched}


def test_max_new_tokens_null_is_the_rest_of_the_context(server: Live) -> None:
    body = server.generate(input_ids=[1] * 500, sampling_params={"max_new_tokens": None, "ignore_eos": True})
    assert body["meta_info"]["completion_tokens"] == 12


def test_max_new_tokens_absent_is_128(server: Live) -> None:
    assert server.generate(text="q")["meta_info"]["completion_tokens"] == 128


def test_a_rid_is_the_answers_id(server: Live) -> None:
    assert server.generate(text="ab", rid="mine", sampling_params=GREEDY)["meta_info"]["id"] == "mine"
    batch = server.generate(text=["ab", "ab"], rid="mine", sampling_params=GREEDY)
    assert [one["meta_info"]["id"] for one in batch] == ["mine_0", "mine_1"]
    batch = server.generate(text=["ab", "ab"], rid=["x", "y"], sampling_params=GREEDY)
    assert [one["meta_info"]["id"] for one in batch] == ["x", "y"]
    batch = server.generate(text=["ab", "ab"], rid=["x", "y"], sampling_params={**GREEDY, "n": 2})
    assert [one["meta_info"]["id"] for one in batch] == ["x_0", "x_1", "y_0", "y_1"]


def test_a_second_turn_finds_whole_pages_of_the_first_in_the_cache(server: Live) -> None:
    ids = [*b"a long prompt that fills pages: " * 5]
    first = server.generate(input_ids=ids, sampling_params=GREEDY, cache_salt="second-turn")
    again = server.generate(input_ids=ids, sampling_params=GREEDY, cache_salt="second-turn")
    other = server.generate(input_ids=ids, sampling_params=GREEDY, cache_salt="another")
    assert first["meta_info"]["cached_tokens"] == 0
    assert again["meta_info"]["cached_tokens"] == 128
    assert other["meta_info"]["cached_tokens"] == 0
    assert first["text"] == again["text"] == other["text"]


def test_an_empty_grammar_is_none(server: Live) -> None:
    assert server.post("/generate", {"text": "ab", "sampling_params": {**GREEDY, "regex": ""}}).status_code == 200
