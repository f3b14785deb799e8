"""Streams: frames, their order, their ends, and that joined they are the answer that isn't streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.conftest import SCRIPT
from tests.http.live import Live, live
from tests.http.raw import frames, posted

GREEDY = {"temperature": 0, "max_new_tokens": 3}
ID = "0" * 32


@pytest.fixture(scope="module")
def incremental(frontend: str) -> Iterator[Live]:
    with live(SCRIPT, incremental_streaming_output=True) as running:
        yield running


def test_native_frames_are_cumulative_and_the_last_is_the_whole_answer(server: Live) -> None:
    body = {"text": "ab", "sampling_params": GREEDY, "return_logprob": True, "logprob_start_len": 0}
    got = frames(server.post("/generate", {**body, "stream": True}).text)
    assert [frame["text"] for frame in got] == ["x", "xy", "xyz"]
    assert [frame["output_ids"] for frame in got] == [[120], [120, 121], [120, 121, 122]]
    assert [frame["meta_info"]["finish_reason"] for frame in got[:2]] == [None, None]
    assert ["e2e_latency" in frame["meta_info"] for frame in got] == [False, False, True]
    assert [len(frame["meta_info"]["output_token_logprobs"]) for frame in got] == [1, 2, 3]
    assert got[-1] == server.generate(**body)


def test_incremental_frames_are_deltas_and_counters_totals(incremental: Live) -> None:
    body = {"text": "ab", "sampling_params": GREEDY, "return_logprob": True, "stream": True}
    got = frames(incremental.post("/generate", body).text)
    assert [frame["text"] for frame in got] == ["x", "y", "z"]
    assert [frame["output_ids"] for frame in got] == [[120], [121], [122]]
    assert [frame["meta_info"]["completion_tokens"] for frame in got] == [1, 2, 3]
    assert [len(frame["meta_info"]["output_token_logprobs"]) for frame in got] == [1, 1, 1]


def test_frames_of_a_batch_carry_their_index(server: Live) -> None:
    got = frames(server.post("/generate", {"text": ["ab", "tenth"], "stream": True, "sampling_params": GREEDY}).text)
    by_index: dict[int, list[str]] = {0: [], 1: []}
    for frame in got:
        assert list(frame)[-1] == "index"
        by_index[frame["index"]].append(frame["text"])
    assert by_index[0] == ["x", "xy", "xyz"]
    assert len(by_index[1]) == 3


def test_one_frame_is_one_chunk(server: Live) -> None:
    raw = posted(server.url, "/generate", {"text": "ab", "stream": True, "sampling_params": GREEDY})
    assert raw.headers["transfer-encoding"] == "chunked"
    chunks = raw.chunks()
    assert len(chunks) == 4
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)
    assert chunks[-1] == b"data: [DONE]\n\n"


def test_the_stream_interval_gives_frames_at_token_1_then_every_k(server: Live) -> None:
    params = {"temperature": 0, "max_new_tokens": 8, "stream_interval": 3, "ignore_eos": True}
    got = frames(server.post("/generate", {"text": "q", "stream": True, "sampling_params": params}).text)
    assert [frame["meta_info"]["completion_tokens"] for frame in got] == [1, 4, 7, 8]


def test_a_stop_string_is_never_sent_and_taken_back(server: Live) -> None:
    params = {"temperature": 0, "max_new_tokens": 7, "stop": [".twX", "wo"]}
    got = frames(server.post("/generate", {"text": "stop", "stream": True, "sampling_params": params}).text)
    texts = [frame["text"] for frame in got]
    assert texts[-1] == "one.t"
    assert all(texts[-1].startswith(text) for text in texts)
    assert got[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": "wo"}


def test_the_head_is_written_only_when_the_first_record_has_come(server: Live) -> None:
    response = server.post("/generate", {"text": "a", "stream": True, "sampling_params": {"regex": "["}})
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("text", ["ab", "zh", "cut", "q", "stop"])
@pytest.mark.parametrize("n", [1, 2])
def test_joined_completion_chunks_are_the_answer_that_is_not_streamed(server: Live, text: str, n: int) -> None:
    body = {"prompt": text, "max_tokens": 12, "n": n, "seed": 3, "logprobs": 2, "temperature": 0.5, "echo": True}
    whole = server.post("/v1/completions", body).json()
    joined: list[dict[str, Any]] = [{} for _ in range(n)]
    for frame in frames(server.post("/v1/completions", {**body, "stream": True}).text):
        [choice] = frame["choices"]
        _join(joined[choice["index"]], choice)
    assert joined == whole["choices"]


def _join(so_far: dict[str, Any], more: dict[str, Any]) -> None:
    if not so_far:
        so_far.update(more)
        return
    so_far["text"] += more["text"]
    for name, values in more["logprobs"].items():
        so_far["logprobs"][name] += values
    so_far["finish_reason"], so_far["matched_stop"] = more["finish_reason"], more["matched_stop"]


@pytest.mark.parametrize("text", ["hi", "zh", "我"])
def test_joined_chat_deltas_are_the_message(server: Live, text: str) -> None:
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 10,
        "seed": 1,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = server.post("/v1/chat/completions", body).json()["choices"][0]
    content, scores = "", []
    for frame in frames(server.post("/v1/chat/completions", {**body, "stream": True}).text):
        [choice] = frame["choices"]
        assert "reasoning_content" in choice["delta"]
        content += choice["delta"].get("content") or ""
        scores += choice["logprobs"]["content"] if choice["logprobs"] else []
    assert content == whole["message"]["content"]
    assert scores == whole["logprobs"]["content"]


def test_every_chunk_of_a_record_has_logprobs_even_without_visible_text(server: Live) -> None:
    body = {"prompt": "zh", "max_tokens": 3, "temperature": 0, "logprobs": 0, "stream": True}
    got = [frame["choices"][0] for frame in frames(server.post("/v1/completions", body).text)]
    assert [choice["text"] for choice in got] == ["", "", "我"]
    assert [len(choice["logprobs"]["tokens"]) for choice in got] == [1, 1, 1]


def test_usage_comes_only_when_asked_and_in_a_chunk_without_choices(server: Live) -> None:
    body = {"prompt": "ab", "max_tokens": 3, "temperature": 0, "stream": True}
    plain = frames(server.post("/v1/completions", body).text)
    assert [frame["usage"] for frame in plain] == [None] * 3
    assert all(frame["choices"] for frame in plain)
    asked = frames(server.post("/v1/completions", {**body, "stream_options": {"include_usage": True}}).text)
    assert asked[:-1] == plain
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"]["completion_tokens"] == 3


def test_continuous_usage_is_in_every_chunk(server: Live) -> None:
    options = {"continuous_usage_stats": True, "include_usage": True}
    body = {"prompt": "ab", "max_tokens": 3, "temperature": 0, "stream": True, "stream_options": options}
    got = frames(server.post("/v1/completions", body).text)
    assert [frame["usage"]["completion_tokens"] for frame in got] == [1, 2, 3, 3]
    chat = {**body, "messages": [{"role": "user", "content": "a"}]}
    assert all(frame["usage"] for frame in frames(server.post("/v1/chat/completions", chat).text))


def test_the_finish_reason_rides_on_the_last_tokens_chunk_of_a_completion(server: Live) -> None:
    body = {"prompt": "ab", "max_tokens": 3, "temperature": 0, "stream": True}
    got = [frame["choices"][0] for frame in frames(server.post("/v1/completions", body).text)]
    assert [choice["finish_reason"] for choice in got] == [None, None, "length"]
    assert got[-1]["text"] == "z"


def test_chat_streams_open_with_the_role_and_close_with_the_reason(server: Live) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "temperature": 0, "stream": True, "n": 2}
    got = [frame["choices"][0] for frame in frames(server.post("/v1/chat/completions", body).text)]
    for index in (0, 1):
        of_index = [choice for choice in got if choice["index"] == index]
        assert of_index[0]["delta"] == {"role": "assistant", "content": "", "reasoning_content": None}
        assert of_index[-1]["delta"] == {"reasoning_content": None}
        assert [choice["finish_reason"] for choice in of_index] == [None, None, None, "length"]


def test_the_seed_header_of_a_stream(server: Live) -> None:
    body = {"text": "hello", "stream": True, "sampling_params": {"max_new_tokens": 2}}
    plain = server.post("/generate", {**body, "stream": False})
    assert server.post("/generate", body).headers["x-zerokl-seed"] == plain.headers["x-zerokl-seed"]
    seeded = {"text": ["a", "b"], "stream": True, "sampling_params": {"max_new_tokens": 2, "sampling_seed": 9}}
    assert server.post("/generate", seeded).headers["x-zerokl-seed"] == "9,9"
    assert "x-zerokl-seed" not in server.post("/generate", {**body, "text": ["a", "b"]}).headers
