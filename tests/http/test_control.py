"""Routes that tell about the server, stop requests, flush the cache, and turn text into ids."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from tests.http.conftest import SCRIPT
from tests.http.live import CLOCK, FRONTEND, Live, live, wait_until
from tests.http.raw import frames, posted
from tests.http.toy import TEMPLATE

SLOW = {"engine": {"step_ms": 20.0}}
LONG = {"text": "hello", "sampling_params": {"max_new_tokens": 400, "ignore_eos": True, "temperature": 0}}


def test_model_info(server: Live) -> None:
    assert server.client.get("/model_info").json() == {
        "model_path": "toy",
        "served_model_name": "toy",
        "tokenizer_path": "toy",
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "load_format": "auto",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "model_type": "fake",
        "architectures": ["Fake"],
        "has_image_understanding": False,
        "has_audio_understanding": False,
    }
    assert server.client.get("/get_model_info").content == server.client.get("/model_info").content


def test_server_info_holds_what_its_readers_want_and_no_key() -> None:
    with live(api_key=("secret-key",), admin_api_key="secret-admin") as server:
        response = server.client.get("/server_info", headers={"authorization": "Bearer secret-key"})
        info = response.json()
        assert "secret" not in response.text
    wanted = {
        "disable_radix_cache": False,
        "page_size": 64,
        "version": "0.1.0",
        "model_path": "toy",
        "served_model_name": "toy",
        "tokenizer_path": "toy",
        "context_length": 512,
        "max_total_num_tokens": 512 * 64,
        "max_running_requests": 256,
        "random_seed": 0,
        "tp_size": 1,
        "dtype": "float32",
        "weight_version": "default",
        "fingerprint": "fake",
        "frontend": FRONTEND.kind,
        "startup_time": 0.0,
    }
    assert {name: info[name] for name in wanted} == wanted
    assert isinstance(info["internal_states"][0], dict)


def test_the_model_list_and_one_card(server: Live) -> None:
    card = {
        "id": "toy",
        "object": "model",
        "created": CLOCK,
        "owned_by": "zerokl",
        "root": "toy",
        "parent": None,
        "max_model_len": 512,
    }
    assert server.client.get("/v1/models").json() == {"object": "list", "data": [card]}
    assert server.client.get("/v1/models/toy").json() == card
    assert server.client.get("/v1/models/a/b").json()["error"]["code"] == "model_not_found"


def test_a_model_name_may_hold_slashes() -> None:
    with live(served_model_name="org/model") as server:
        assert server.client.get("/v1/models/org/model").json()["id"] == "org/model"
        assert server.client.get("/v1/models/org%2Fmodel").json()["id"] == "org/model"


def test_flush_empties_an_idle_cache(server: Live) -> None:
    ids = [7] * 200
    body: dict[str, Any] = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1}}
    server.generate(**body)
    assert server.generate(**body)["meta_info"]["cached_tokens"] == 192
    for method, path in (("GET", "/flush_cache"), ("POST", "/flush_cache"), ("POST", "/reset_prefix_cache")):
        response = server.client.request(method, path)
        assert (response.status_code, response.text) == (200, "Cache flushed.\n")
        assert server.generate(**body)["meta_info"]["cached_tokens"] == 0


def test_a_flush_of_the_device_tier_needs_no_idle_engine(server: Live) -> None:
    response = server.client.post("/flush_cache", params={"tier": "device"})
    assert (response.status_code, response.text) == (200, "Device cache flushed.\n")


@pytest.mark.parametrize("value", ["-1", "x", "nan", "1e9", "inf"])
def test_a_flush_timeout_is_a_number_of_seconds(server: Live, value: str) -> None:
    response = server.client.get("/flush_cache", params={"timeout": value})
    assert response.status_code == 400
    assert "timeout must be a number of seconds from 0 to 3600" in response.json()["error"]["message"]


def test_a_busy_engine_refuses_to_flush_and_with_a_timeout_waits() -> None:
    with live(**SLOW) as server:
        short = {**LONG, "sampling_params": {**LONG["sampling_params"], "max_new_tokens": 20}}
        raw = posted(server.url, "/generate", {**short, "stream": True})
        assert server.client.get("/flush_cache").status_code == 400
        assert server.client.get("/flush_cache", params={"timeout": 0.05}).status_code == 400
        assert server.client.post("/flush_cache", params={"timeout": 30}).status_code == 200
        assert raw.chunks()[-1] == b"data: [DONE]\n\n"


def test_an_aborted_request_ends_normally_with_the_tokens_so_far() -> None:
    with live(**SLOW) as server:
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(server.post("/generate", {**LONG, "rid": "mine"})))
        thread.start()
        wait_until(lambda: server.in_flight() == 1)
        wait_until(lambda: server.client.get("/server_info").json()["internal_states"][0]["running"] == 1)
        assert server.post("/abort_request", {"rid": "mine"}).status_code == 200
        thread.join()
        body = answers[0].json()
        assert answers[0].status_code == 200
        assert body["meta_info"]["finish_reason"] == {
            "type": "abort",
            "message": "Aborted",
            "status_code": None,
            "err_type": None,
        }
        assert len(body["output_ids"]) == body["meta_info"]["completion_tokens"] < 400


def test_an_abort_matches_a_batch_and_a_stream_ends_with_done() -> None:
    with live(**SLOW) as server:
        raw = posted(server.url, "/generate", {**LONG, "text": ["a", "b"], "rid": "pair", "stream": True})
        assert server.post("/abort_request", {"rid": "pair_1"}).status_code == 200
        assert server.post("/abort_request", {"rid": "pai"}).status_code == 200
        assert server.post("/abort_request", {"rid": "pair"}).status_code == 200
        got = frames(b"".join(raw.chunks()).decode())
        last = {frame["index"]: frame["meta_info"]["finish_reason"] for frame in got}
        assert [last[index]["type"] for index in (0, 1)] == ["abort", "abort"]


def test_everything_can_be_aborted_and_nothing_is_no_error(server: Live) -> None:
    response = server.post("/abort_request", {"abort_all": True})
    assert (response.status_code, response.content) == (200, b"")
    assert server.post("/abort_request", {"rid": "unknown"}).status_code == 200
    assert server.post("/abort_request", {}).json()["error"]["message"] == "one of rid and abort_all must be given"


def test_a_rid_in_flight_is_409_and_free_again_afterwards() -> None:
    with live(**SLOW) as server:
        raw = posted(server.url, "/generate", {**LONG, "rid": "mine", "stream": True})
        response = server.post("/generate", {**LONG, "rid": "mine"})
        assert response.status_code == 409
        assert response.json()["error"]["code"] == "rid_in_use"
        assert response.headers["x-should-retry"] == "false"
        server.post("/abort_request", {"rid": "mine"})
        raw.chunks()
        short = {"text": "ab", "sampling_params": {"max_new_tokens": 1}, "rid": "mine"}
        assert server.post("/generate", short).status_code == 200


def test_tokenize_and_detokenize_are_inverse(server: Live) -> None:
    answer = server.post("/tokenize", {"prompt": "hi"}).json()
    assert answer == {"tokens": [104, 105], "count": 2, "max_model_len": 512}
    nested = server.post("/v1/tokenize", {"prompt": ["hi", "a"]}).json()
    assert nested == {"tokens": [[104, 105], [97]], "count": [2, 1], "max_model_len": 512}
    assert server.post("/detokenize", {"tokens": [104, 105]}).json() == {"text": "hi"}
    assert server.post("/v1/detokenize", {"tokens": [[104], [105]]}).json() == {"text": ["h", "i"]}
    special = {"tokens": [256, 104], "skip_special_tokens": False}
    assert server.post("/detokenize", special).json() == {"text": "<s>h"}
    assert server.post("/detokenize", {"tokens": [256, 104]}).json() == {"text": "h"}


def test_messages_are_tokenized_through_the_template(server: Live) -> None:
    answer = server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}).json()
    assert answer["count"] == 20
    assert answer["tokens"][:6] == list(b"<user>")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/tokenize", {}, "exactly one of prompt and messages must be given, got neither"),
        ("/tokenize", {"prompt": 5}, "prompt must be a string or a list of strings, got 5"),
        ("/detokenize", {}, "tokens must be a list of token ids or a list of such lists, got null"),
        ("/detokenize", {"tokens": [999]}, "tokens[0] must be a token id from 0 to 258, got 999"),
        ("/detokenize", {"tokens": [[1], [-1]]}, "tokens[1][0] must be a token id from 0 to 258, got -1"),
    ],
)
def test_tokenizer_routes_name_mistakes(server: Live, path: str, body: dict[str, Any], message: str) -> None:
    response = server.post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == message


def test_tokenizer_info(server: Live) -> None:
    info = server.client.get("/tokenizer_info").json()
    assert (info["bos_token"], info["eos_token"], info["model_max_length"]) == ("<s>", "</s>", 512)
    assert info["chat_template"] == TEMPLATE


def test_health_generate_neither_reads_nor_fills_the_cache(server: Live) -> None:
    server.client.post("/flush_cache", params={"timeout": 10})
    assert server.client.get("/health_generate").status_code == 200
    assert server.client.get("/server_info").json()["internal_states"][0]["cache"]["cached"] == 0


def test_the_docs_page_and_document(server: Live) -> None:
    assert "text/html" in server.client.get("/docs").headers["content-type"]
    assert "/generate" in server.client.get("/openapi.json").json()["paths"]


def test_weights_cannot_be_changed_yet_and_say_so(server: Live) -> None:
    response = server.post("/update_weights_from_disk", {"model_path": "x"})
    assert response.status_code == 400
    assert response.json()["success"] is False


def test_scripted_text_is_what_the_script_says(server: Live) -> None:
    """The other tests stand on it."""
    assert server.generate(text="ab", sampling_params={"temperature": 0, "max_new_tokens": 3})["text"] == "xyz"
    assert SCRIPT[0]["prompt"] == [97, 98]
