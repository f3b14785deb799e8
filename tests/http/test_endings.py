"""Requests that end otherwise than they began: clients that leave, engines that die, servers that are full."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.http.conftest import says
from tests.http.live import FRONTEND, Live, live, wait_until
from tests.http.raw import connect, frames, posted
from zerokl.engine import process as process_module
from zerokl.server import connection
from zerokl.server import engine as engine_module

SLOW = {"step_ms": 10.0}
LONG = {"text": "hello", "sampling_params": {"max_new_tokens": 400, "ignore_eos": True, "temperature": 0}}
SHORT = {"text": "hello", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}


def in_flight(server: Live) -> int:
    return server.in_flight()


def running(server: Live) -> int:
    stats = server.client.get("/server_info").json()["internal_states"][0]
    count: int = stats["running"] + stats["queued"]
    return count


def assert_nothing_is_left(server: Live) -> None:
    wait_until(lambda: in_flight(server) == 0)
    wait_until(lambda: running(server) == 0)
    server.engine.engine.scheduler.cache.check()
    assert server.generate(**SHORT)["text"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_a_client_that_leaves_frees_everything_at_once(path: str, stream: bool) -> None:
    with live(engine=SLOW) as server:
        body: dict[str, Any] = {"stream": stream, "max_tokens": 400, "ignore_eos": True, "prompt": "hello"}
        body |= {**LONG, "messages": [{"role": "user", "content": "hi"}], "n": 2} if path != "/generate" else LONG
        body.pop("n", None) if path == "/generate" else None
        raw = connect(server.url)
        raw.send("POST", path, json.dumps(body).encode())
        wait_until(lambda: running(server) > 0)
        if stream:
            raw.read_head()
            raw.chunk()
        raw.socket.shutdown(socket.SHUT_RDWR)
        raw.close()
        wait_until(lambda: in_flight(server) == 0, timeout_s=2)
        assert_nothing_is_left(server)


def test_a_client_that_leaves_mid_body_is_no_request(server: Live) -> None:
    raw = connect(server.url)
    raw.socket.sendall(b'POST /generate HTTP/1.1\r\nhost: t\r\ncontent-length: 1000\r\n\r\n{"text"')
    raw.close()
    assert_nothing_is_left(server)


def test_an_answer_that_is_being_written_is_not_an_abort(server: Live) -> None:
    """The watcher also wakes when the answer is complete; keep-alive must survive a hundred of those."""
    for _ in range(100):
        assert server.post("/generate", SHORT).status_code == 200
    assert_nothing_is_left(server)


def test_the_engines_failure_ends_open_streams_with_an_error_frame_then_503() -> None:
    script = [says("hello", "ok", fail=True)]
    with live(script, engine=SLOW) as server:
        raw = posted(server.url, "/generate", {**SHORT, "stream": True})
        *got, last = [json.loads(chunk.removeprefix(b"data: ")) for chunk in raw.chunks()[:-1]]
        assert [frame["text"] for frame in got] == ["o", "ok"]
        assert list(last) == ["error"]
        assert last["error"]["type"] == "server_error"
        wait_until(lambda: server.client.get("/health").status_code == 503)
        response = server.post("/generate", SHORT)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_down"


def test_the_engines_failure_is_a_500_for_an_answer_that_is_not_streamed() -> None:
    with live([says("hello", "ok", fail=True)], engine=SLOW) as server:
        response = server.post("/generate", SHORT)
        assert response.status_code in (500, 503)
        assert response.json()["error"]["type"] == "server_error"


def test_past_the_limit_requests_are_refused_with_429() -> None:
    with live(engine={**SLOW, "max_running_requests": 1}, max_running_requests=1, max_queued_requests=2) as server:
        raws = [posted(server.url, "/generate", {**LONG, "stream": True})]
        for _ in "12":
            raws.append(connect(server.url))
            raws[-1].send("POST", "/generate", json.dumps({**LONG, "stream": True}).encode())
        wait_until(lambda: in_flight(server) == 3)
        response = server.post("/generate", SHORT)
        assert response.status_code == 429
        assert response.headers["retry-after"] == "1"
        assert response.json()["error"] == {
            "message": "3 requests are in flight; the limit is 3. Try again later",
            "type": "rate_limit_error",
            "param": None,
            "code": "queue_full",
        }
        assert server.client.get("/health").status_code == 200
        for raw in raws:
            raw.close()
        assert_nothing_is_left(server)


def test_a_batch_larger_than_the_engines_places_is_fed_in_as_they_become_free() -> None:
    places = {"max_running_requests": 2, "max_queued_requests": 1}
    with live(engine=places, **places) as server:
        prompts = [f"prompt {i}" for i in range(40)]
        params = {"max_new_tokens": 5, "temperature": 0}
        answers = server.generate(text=prompts, sampling_params=params)
        alone = [server.generate(text=prompt, sampling_params=params)["text"] for prompt in prompts]
        assert [answer["text"] for answer in answers] == alone
        assert_nothing_is_left(server)


def test_what_still_waits_for_a_place_is_aborted_too() -> None:
    places = {"max_running_requests": 1, "max_queued_requests": 0}
    with live(engine={**SLOW, **places}, **places) as server:
        raw = posted(server.url, "/generate", {**LONG, "text": ["a", "b", "c"], "rid": "it", "stream": True})
        assert server.post("/abort_request", {"rid": "it"}).status_code == 200
        last = {frame["index"]: frame for frame in frames(b"".join(raw.chunks()).decode())}
        assert [last[index]["meta_info"]["finish_reason"]["type"] for index in (0, 1, 2)] == ["abort"] * 3
        assert [last[index]["output_ids"] for index in (1, 2)] == [[], []]
        assert_nothing_is_left(server)


def test_500_requests_at_once_on_a_tiny_page_pool_each_get_their_answer() -> None:
    engine = {"num_pages": 12, "page_size": 16, "context_length": 128, "max_running_requests": 32}
    with live(engine=engine) as server:

        async def all_at_once() -> list[Any]:
            return await asyncio.gather(*(generate_by_hand(server.url, body_of(i)) for i in range(500)))

        answers = asyncio.run(all_at_once())
        alone = [server.generate(**body_of(i)) for i in range(20)]
        for i, answer in enumerate(answers):
            assert answer["output_ids"] == alone[i % 20]["output_ids"]
        assert_nothing_is_left(server)


async def generate_by_hand(url: str, body: dict[str, Any]) -> Any:
    """One connection, one request. (A pool of 500 costs httpx a quadratic half minute.)"""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    content = json.dumps(body).encode()
    head = f"POST /generate HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    answer = await reader.read()
    writer.close()
    head_lines, text = answer.split(b"\r\n\r\n", 1)
    assert head_lines.startswith(b"HTTP/1.1 200 ")
    return json.loads(text)


def body_of(number: int) -> dict[str, Any]:
    """Twenty different requests, some longer than a page, all sampled by their own seed."""
    kind = number % 20
    text = f"request {kind} " * (1 + kind % 4)
    return {"text": text, "sampling_params": {"max_new_tokens": 8 + kind, "ignore_eos": True, "sampling_seed": kind}}


@pytest.mark.python_frontend
def test_a_server_that_shuts_down_refuses_new_requests_and_ends_the_open_ones() -> None:
    with live(engine=SLOW) as server:
        body = {**LONG, "sampling_params": {**LONG["sampling_params"], "max_new_tokens": 30}, "stream": True}
        raw = posted(server.url, "/generate", body)
        server.frontend.app.service.engine.draining = True
        response = server.post("/generate", SHORT)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "draining"
        assert server.client.get("/health").status_code == 503
        assert len(frames(b"".join(raw.chunks()).decode())) == 30


@pytest.mark.python_frontend
def test_before_the_engine_is_there_the_server_says_starting() -> None:
    with live() as server:
        engine = server.frontend.app.service.engine
        engine._was_there, engine._client = False, None
        response = server.client.get("/health")
        assert response.status_code == 503
        assert response.json()["error"] == {
            "message": "the engine is starting",
            "type": "server_error",
            "param": None,
            "code": "starting",
        }


def test_a_client_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALLED_S", 0.2)
    monkeypatch.setattr(FRONTEND, "limits", {"stalled_s": 0.2})
    with live(engine={"context_length": 4096, "num_pages": 200}) as server:
        raw = connect(server.url)
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        params = {"max_new_tokens": 4000, "ignore_eos": True}
        body = {"text": "hello", "stream": True, "sampling_params": params, "return_logprob": True}
        raw.send("POST", "/generate", json.dumps(body).encode())
        wait_until(lambda: in_flight(server) == 1)
        wait_until(lambda: in_flight(server) == 0, timeout_s=20)
        assert_nothing_is_left(server)
        raw.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """A server that gives up clients after 0.3 s; the prompt "long" keeps it busy for a second."""
    monkeypatch.setattr(connection, "STALLED_S", 0.3)
    monkeypatch.setattr(FRONTEND, "limits", {"stalled_s": 0.3})
    with live([{"prompt": [*b"long"], "tokens": [97], "step_ms": 1000}]) as server:
        yield server


HEAD = b"POST /generate HTTP/1.1\r\nhost: t\r\ncontent-length: 1000\r\n\r\n"


@pytest.mark.parametrize("begun", [HEAD, HEAD + b'{"text":'])
def test_a_client_that_sends_no_more_of_its_body_is_hung_up_on(impatient: Live, begun: bytes) -> None:
    peer = connect(impatient.url).socket
    peer.sendall(begun)
    with contextlib.suppress(ConnectionResetError):
        assert peer.recv(1000) == b""
    assert 'path="/generate",status="0"' in impatient.client.get("/metrics").text


@pytest.mark.python_frontend
def test_a_client_that_sends_no_more_of_its_head_is_hung_up_on(impatient: Live) -> None:
    peer = connect(impatient.url).socket
    peer.sendall(HEAD[:30])
    with contextlib.suppress(ConnectionResetError):
        assert peer.recv(1000) == b""


@pytest.mark.parametrize("kept", [20, len(HEAD)])
def test_half_a_request_after_a_whole_one_does_not_end_its_answer(impatient: Live, kept: int) -> None:
    raw = connect(impatient.url)
    body = json.dumps({"text": "long", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}).encode()
    raw.send("POST", "/generate", body)
    raw.socket.sendall(HEAD[:kept])
    raw.read_head()
    assert raw.status == 200


def test_a_body_that_comes_slowly_is_waited_for(impatient: Live) -> None:
    raw = connect(impatient.url)
    body = json.dumps({"text": "ab", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}).encode()
    raw.socket.sendall(b"POST /generate HTTP/1.1\r\nhost: t\r\ncontent-length: %d\r\n\r\n" % len(body))
    for start in range(0, len(body), 16):
        raw.socket.sendall(body[start : start + 16])
        time.sleep(0.15)
    raw.read_head()
    assert raw.status == 200


@pytest.mark.slow
def test_a_step_that_takes_long_is_healthy_until_the_watchdog_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(engine_module, "SILENT_S", 0.5)
    monkeypatch.setattr(FRONTEND, "limits", {"silent_s": 0.5})
    script = [{"prompt": [*b"long"], "tokens": [97], "step_ms": 2500}]
    with live(script, watchdog_timeout=1.5) as server:
        body = {"text": "long", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.generate, **body)
            wait_until(lambda: in_flight(server) == 1)
            began = time.monotonic()
            wait_until(lambda: server.client.get("/health").status_code == 503)
            assert time.monotonic() - began > 1.0, "it was given up for its silence"
            assert answer.result()["text"] == "a"
        wait_until(lambda: server.client.get("/health").status_code == 200)


@pytest.mark.python_frontend
def test_an_engine_that_says_nothing_for_long_is_not_healthy(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server.client.get("/health").status_code == 200
    monkeypatch.setattr(engine_module, "SILENT_S", 0.0)
    response = server.client.get("/health")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_down"
