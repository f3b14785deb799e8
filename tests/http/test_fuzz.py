"""Thousands of requests, valid and broken: no 5xx, no hang, every answer of its form, and nothing left behind."""

from __future__ import annotations

import gc
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.http.bodies import JUNK, bodies
from tests.http.live import Live, live, wait_until
from tests.http.raw import frames
from tests.http.test_endings import assert_nothing_is_left
from zerokl.server.routes import ROUTES

PATHS = {route.path: route.fields for route in ROUTES if route.fields}
GENERATING = ["/generate", "/v1/completions", "/v1/chat/completions"]
ERROR_KEYS = ["message", "type", "param", "code"]
RAW = st.binary(max_size=40) | st.sampled_from(
    [b"", b"{", b"[]", b"null", b'{"a":1e999}', b"[" * 10_000, b'{"text":"\xff"}']
)


@pytest.fixture(scope="module")
def server(frontend: str) -> Iterator[Live]:
    with live(tool_call_parser="hermes", engine={"num_pages": 40, "page_size": 16}) as running:
        running.client.timeout = 20  # type: ignore[assignment]
        yield running


def check_request(server: Live, path: str, body: bytes) -> None:
    """One request, whatever it is, is answered in full and in form."""
    response = server.client.post(path, content=body)
    assert response.status_code < 500, response.text
    assert response.headers["x-request-id"]
    kind = response.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        assert response.status_code == 200
        for frame in frames(response.text):
            check_no_fault(frame)
    elif response.status_code != 200 and path != "/update_weights_from_disk":
        assert list(response.json()) == ["error"]
        assert list(response.json()["error"]) == ERROR_KEYS
    elif kind == "application/json":
        check_no_fault(response.json())


def check_no_fault(answer: Any) -> None:
    """An error in the middle is one that the request itself caused."""
    if isinstance(answer, dict) and "error" in answer:
        assert answer["error"]["type"] in ("invalid_request_error", "rate_limit_error"), answer


def requests() -> st.SearchStrategy[tuple[str, bytes]]:
    def encoded(path: str) -> st.SearchStrategy[tuple[str, bytes]]:
        good = bodies(PATHS[path]).map(lambda body: json.dumps(body).encode())
        junk = JUNK.map(lambda body: json.dumps(body).encode())
        return st.tuples(st.just(path), st.one_of(good, good, good, good, good, junk, RAW))

    return st.sampled_from([*sorted(PATHS), *GENERATING * 4]).flatmap(encoded)


QUICK = settings(max_examples=120, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)


@QUICK
@given(request=requests())
def test_no_request_is_answered_with_a_fault_of_ours(server: Live, request: tuple[str, bytes]) -> None:
    check_request(server, *request)


def test_after_all_that_nothing_is_left(server: Live) -> None:
    assert_nothing_is_left(server)
    assert server.client.post("/flush_cache", params={"timeout": 5}).status_code == 200
    stats = server.client.get("/server_info").json()["internal_states"][0]
    assert (stats["cache"]["leased"], stats["cache"]["cached"], stats["running"], stats["queued"]) == (0, 0, 0, 0)
    assert len(server.engine.ledger.open_requests()) == 0


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_twenty_thousand_requests_are_answered_without_a_fault_of_ours(server: Live) -> None:
    @settings(QUICK, max_examples=20_000)
    @given(request=requests())
    def many(request: tuple[str, bytes]) -> None:
        check_request(server, *request)

    before = open_files()
    many()
    test_after_all_that_nothing_is_left(server)
    assert open_files() <= before + 3


@pytest.mark.slow
def test_the_same_requests_again_and_again_leave_memory_and_files_where_they_were(server: Live) -> None:
    """Apart from the test above, because Hypothesis itself remembers what it tried."""
    sent: list[tuple[str, bytes]] = []

    @settings(QUICK, max_examples=300)
    @given(request=requests())
    def collect(request: tuple[str, bytes]) -> None:
        sent.append(request)

    def send_all(times: int) -> int:
        for path, body in sent * times:
            server.client.post(path, content=body)
        gc.collect()
        return resident_bytes()

    collect()
    before, files = send_all(4), open_files()
    assert send_all(10) < before + 6 * 2**20
    assert open_files() <= files + 3


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
def test_half_open_and_idle_connections_do_not_keep_others_waiting(server: Live) -> None:
    port = int(server.url.rpartition(":")[2])
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
    for connection in idle[:150]:
        connection.sendall(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
    assert server.generate(text="ab", sampling_params={"max_new_tokens": 1})["output_ids"]
    for connection in idle:
        connection.close()
    assert_nothing_is_left(server)
    wait_until(lambda: server.client.get("/health").status_code == 200)
