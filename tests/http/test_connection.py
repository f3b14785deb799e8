"""What HTTP itself asks of a connection: one write per frame, keep-alive, pipelining, HTTP/1.0, early answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.live import Live, wait_until
from zerokl.server import connection, generate

BODY = {"text": "ab", "sampling_params": {"temperature": 0, "max_new_tokens": 3}}


@pytest.fixture
def peer(server: Live) -> Iterator[socket.socket]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connected:
        yield connected


def request(body: Any, version: str = "1.1", head: str = "") -> bytes:
    content = json.dumps(body).encode()
    return (
        f"POST /generate HTTP/{version}\r\nhost: t\r\n{head}content-length: {len(content)}\r\n\r\n".encode() + content
    )


def read_until(peer: socket.socket, end: bytes) -> bytes:
    got = b""
    while not got.endswith(end):
        received = peer.recv(65536)
        assert received, got
        got += received
    return got


def read_all(peer: socket.socket) -> bytes:
    got = b""
    while received := peer.recv(65536):
        got += received
    return got


@pytest.mark.python_frontend
def test_an_answer_is_one_write_and_so_is_a_streams_every_frame(
    server: Live, peer: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    original = connection.Outlet._write

    async def noted(outlet: connection.Outlet, data: bytes) -> None:
        written.append(data)
        await original(outlet, data)

    monkeypatch.setattr(connection.Outlet, "_write", noted)
    peer.sendall(request(BODY))
    assert read_until(peer, b"}") == b"".join(written)
    assert len(written) == 1
    written.clear()
    peer.sendall(request({**BODY, "stream": True}))
    assert read_until(peer, b"0\r\n\r\n") == b"".join(written)
    assert [data.count(b"data: ") for data in written] == [1, 1, 1, 1]
    assert written[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert written[-1] == b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def test_requests_sent_at_once_are_answered_one_after_the_other(peer: socket.socket) -> None:
    peer.sendall(request(BODY) * 3 + request(BODY, head="connection: close\r\n"))
    answers = read_all(peer).split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [json.loads(answer.partition(b"\r\n\r\n")[2])["text"] for answer in answers] == ["xyz"] * 4
    assert [b"connection: close" in answer for answer in answers] == [False, False, False, True]


def test_a_client_of_http_1_0_gets_frames_without_chunks_until_the_connection_ends(peer: socket.socket) -> None:
    peer.sendall(request({**BODY, "stream": True}, version="1.0"))
    head, _, body = read_all(peer).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head or head.startswith(b"HTTP/1.0 ")  # where that goes without saying
    assert body.startswith(b'data: {"text":"x"')
    assert body.endswith(b"data: [DONE]\n\n")


def test_a_client_that_waits_for_100_continue_is_told_to(peer: socket.socket) -> None:
    head, _, body = request(BODY, head="expect: 100-continue\r\n").partition(b"\r\n\r\n")
    peer.sendall(head + b"\r\n\r\n")
    assert read_until(peer, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    peer.sendall(body)
    assert read_until(peer, b"}").startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_client_that_leaves_while_its_next_request_waits_frees_everything(server: Live, peer: socket.socket) -> None:
    long = {"text": "hello", "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
    peer.sendall(request(long) + request(long))
    peer.close()
    wait_until(lambda: server.in_flight() == 0)
    assert server.generate(**BODY)["text"] == "xyz"


@pytest.mark.python_frontend
def test_clients_that_leave_in_the_middle_of_their_streams_are_no_news(
    server: Live, caplog: pytest.LogCaptureFixture
) -> None:
    """uvicorn would report each whose last frame could not be written as a mistake of the app."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    long = {"text": "hello", "stream": True, "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
    with caplog.at_level("WARNING"):
        for _ in range(20):
            peers = [socket.create_connection((host, int(port)), timeout=10) for _ in range(4)]
            for peer in peers:
                peer.sendall(request(long))
            for peer in peers:
                assert peer.recv(1000)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its close is a reset
                peer.close()
        wait_until(lambda: server.in_flight() == 0)
    assert caplog.messages == []


@pytest.mark.python_frontend
def test_a_client_that_leaves_before_its_request_is_understood_starts_nothing(
    server: Live, peer: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, lost = threading.Event(), threading.Event()
    original, original_lost = generate.parse, connection.Connection.connection_lost

    async def slow(*given: Any) -> Any:
        reached.set()
        while not lost.is_set():
            await asyncio.sleep(0.01)
        return await original(*given)

    def noted(one: connection.Connection, error: Exception | None) -> None:
        original_lost(one, error)
        lost.set()

    monkeypatch.setattr(generate, "parse", slow)
    monkeypatch.setattr(connection.Connection, "connection_lost", noted)
    meter = server.frontend.app.service.engine.flights.meter
    started, unanswered = meter.started, (("path", "/generate"), ("status", "0"))
    before = meter.answers.values.get(unanswered, 0)
    peer.sendall(request(BODY))
    assert reached.wait(10)
    peer.close()
    wait_until(lambda: meter.answers.values.get(unanswered, 0) == before + 1)
    assert meter.started == started


@pytest.mark.parametrize("value", [b"a\x01b", b"\xff\xfe", b"caf\xc3\xa9", b"\x7f"])
def test_a_strange_request_id_hurts_nobody(peer: socket.socket, value: bytes) -> None:
    peer.sendall(b"GET /version HTTP/1.1\r\nhost: t\r\nconnection: close\r\nx-request-id: " + value + b"\r\n\r\n")
    answer = read_all(peer)
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400")), answer
    if answer.startswith(b"HTTP/1.1 200"):
        assert b"\r\nx-request-id: " + value + b"\r\n" in answer


@pytest.mark.parametrize("endless", [b"x: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n", b"y" * 10_000])
def test_a_head_without_end_is_refused_and_the_connection_closed(peer: socket.socket, endless: bytes) -> None:
    """Nothing else would bound the memory that one connection takes."""
    peer.sendall(b"GET /version HTTP/1.1\r\nhost: t\r\nx: ")
    with pytest.raises(ConnectionError):  # noqa: PT012
        for _ in range(100_000):
            peer.sendall(endless)


def test_a_long_head_within_the_limit_is_taken(peer: socket.socket) -> None:
    peer.sendall(request(BODY, head=f"x-long: {'y' * 60_000}\r\n"))
    assert read_until(peer, b"}").startswith(b"HTTP/1.1 200 OK\r\n")


def test_who_asks_for_a_websocket_is_answered_in_http(peer: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    peer.sendall(b"GET /version HTTP/1.1\r\nhost: t\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
    assert read_until(peer, b"}").startswith(b"HTTP/1.1 200 OK\r\n")
    assert caplog.text == ""


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
@pytest.mark.parametrize("cut", [0, 20, 60, 90])
def test_a_body_is_read_though_its_head_asks_for_another_protocol(peer: socket.socket, protocol: str, cut: int) -> None:
    """As Java's client does on every first request."""
    wish = f"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\nUpgrade: {protocol}\r\n"
    sent = request({**BODY, "cache_salt": "\nupgrade: x"}, head=wish)
    peer.sendall(sent[:cut])
    time.sleep(0.05 if cut else 0)
    peer.sendall(sent[cut:])
    answer = read_until(peer, b"}")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"text":"xyz"' in answer


def test_such_a_head_may_be_cut_anywhere(peer: socket.socket) -> None:
    content = json.dumps(BODY).encode() + b"\n"
    head = b"POST /generate HTTP/1.1\r\nhost: t\r\nconnection: upgrade\r\nUpgrade: h2c\r\nu: v\r\n"
    sent = head + b"content-length: %d\r\n\r\n" % len(content) + content
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    start, end = sent.index(b"\r\nUpgrade"), sent.index(b"{") + 2
    for cuts in [*([cut] for cut in range(start, end)), range(start, end)]:
        for part in itertools.pairwise([0, *cuts, len(sent)]):
            peer.sendall(sent[slice(*part)])
            time.sleep(0.004)
        answer = read_until(peer, b"}")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n"), cuts
        assert b'"text":"xyz"' in answer
