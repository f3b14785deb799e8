"""Clients that mean harm, or are broken: memory stays bounded, nothing panics, and others are answered meanwhile.

The server runs as processes, so that the memory is the frontend's alone. Runs against both frontends.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.served import Served, served
from tests.http.live import wait_until
from tests.http.raw import connect
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=40, stage="base-b", runner_config="cpu-small")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MB = 2**20
SHORT = {"text": "hello", "sampling_params": {"max_new_tokens": 2}}
LONG = {"text": "hello", "stream": True, "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
PATIENCE_S = 30.0
"""Of a bystander. Machines are busy; what is meant is that nobody waits for the attack to end."""


@dataclass(slots=True)
class Target:
    """A server and the process of its frontend."""

    server: Served
    pid: int
    url: str

    def connect(self) -> socket.socket:
        return connect(self.url).socket

    def peak(self) -> int:
        """Bytes, the most since `forget_peak`."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])

    def forget_peak(self) -> int:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.peak()


@dataclass(slots=True)
class Bystander:
    """One who asks small things all the time, on connections of its own."""

    url: str
    longest_s: float = 0.0
    answers: int = 0
    failures: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        while not self.over.is_set():
            began = time.monotonic()
            try:
                response = httpx.post(f"{self.url}/generate", json=SHORT, timeout=PATIENCE_S)
                if response.status_code != 200:
                    self.failures.append(response.text)
            except httpx.HTTPError as error:
                self.failures.append(repr(error))
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.answers += 1
            self.over.wait(0.02)


@pytest.fixture(scope="module")
def target(frontend: str) -> Iterator[Target]:
    with served("--num-pages", "1024", frontend=frontend) as running:
        [pid] = running.children("cli.frontend")
        yield Target(running, pid, str(running.client.base_url))


@contextlib.contextmanager
def harmless(target: Target, extra_mb: float) -> Iterator[None]:
    """What happens inside takes the frontend no more memory than that, and keeps nobody else waiting."""
    bystander = Bystander(target.url)
    asking = threading.Thread(target=bystander.ask)
    before = target.forget_peak()
    asking.start()
    try:
        yield
        wanted = bystander.answers + 3
        wait_until(lambda: bystander.answers >= wanted, timeout_s=2 * PATIENCE_S)
    finally:
        bystander.over.set()
        asking.join()
    assert bystander.failures == []
    assert bystander.longest_s < PATIENCE_S
    assert (target.peak() - before) / MB < extra_mb
    assert target.server.children("cli.frontend") == [target.pid], "the frontend was started again"
    assert httpx.get(f"{target.url}/health").status_code == 200


def what_came(peer: socket.socket, sent: Callable[[socket.socket], object]) -> bytes:
    """Send, and read until the server hangs up or has answered; b"" if it hung up at once."""
    got = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        sent(peer)
    with contextlib.suppress(ConnectionError, TimeoutError):
        peer.settimeout(5)
        got = peer.recv(65536)
    peer.close()
    return got


def status_of(answer: bytes) -> int:
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def head(length: int | str, extra: str = "") -> bytes:
    return f"POST /generate HTTP/1.1\r\nhost: t\r\n{extra}content-length: {length}\r\n\r\n".encode()


def test_two_thousand_idle_and_half_open_connections(target: Target) -> None:
    beginnings = [b"", b"POST /gen", head(1000), head(1000) + b'{"text": "a']
    with harmless(target, extra_mb=80):
        peers = [target.connect() for _ in range(2000)]
        for number, peer in enumerate(peers):
            peer.sendall(beginnings[number % 4])
        time.sleep(1)
        for peer in peers:
            peer.close()


def test_readers_that_never_read_hold_no_more_than_their_buffers(target: Target) -> None:
    """The engine goes on to the end of their answers; 12 cumulative streams of 4,000 frames are 700 MB of text."""
    with harmless(target, extra_mb=100):
        peers = [target.connect() for _ in range(12)]
        for peer in peers:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            body = json.dumps(LONG).encode()
            peer.sendall(head(len(body)) + body)
        time.sleep(4)
        for peer in peers:
            peer.close()
    wait_until(lambda: figure(target, "zerokl:num_requests_in_flight") <= 1)


def figure(target: Target, name: str) -> float:
    lines = httpx.get(f"{target.url}/metrics").text.splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}{{")]
    return float(line.rpartition(" ")[2])


def endless(part: bytes, total: int) -> Callable[[socket.socket], None]:
    def send(peer: socket.socket) -> None:
        for _ in range(0, total, len(part)):
            peer.sendall(part)

    return send


@pytest.mark.parametrize("part", [b"x: " + b"y" * 1000 + b"\r\n", b"y" * 10_000, b"a: b\r\n" * 200])
def test_heads_without_end(target: Target, part: bytes) -> None:
    with harmless(target, extra_mb=40):
        for _ in range(10):
            peer = target.connect()
            peer.sendall(b"GET /version HTTP/1.1\r\nhost: t\r\nx: ")
            assert status_of(what_came(peer, endless(part, 4 * MB))) in (0, 400, 431)


def test_bodies_larger_than_the_limit(target: Target) -> None:
    """Refused by what they declare, or where they cross the limit of 64 MiB."""
    chunk = b"100000\r\n" + b" " * MB + b"\r\n"
    chunked = b"POST /generate HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n"
    with harmless(target, extra_mb=260):
        for length in (10**10, 10**30):
            assert status_of(what_came(target.connect(), lambda peer, n=length: peer.sendall(head(n)))) in (400, 413)
        peer = target.connect()
        peer.sendall(chunked)
        assert status_of(what_came(peer, endless(chunk, 100 * MB))) in (0, 413)


LISTS = b"[" + b"[]," * MB + b"[]]"
BOMBS = {
    "lists": b'{"input_ids":' + LISTS + b"}",
    "depth": b'{"text":' * MB,
    "brackets": b"[" * (4 * MB),
    "keys": json.dumps({f"k{i}": i for i in range(200_000)}).encode(),
    "digits": b'{"text":"a","priority":' + b"9" * (2 * MB) + b"}",
    "exponent": b'{"text":"a","priority":1e' + b"9" * 1000 + b"}",
    "text": json.dumps({"text": "a b" * (2 * MB)}).encode(),
    "ids": json.dumps({"input_ids": [1] * (2 * MB)}).encode(),
    "batch": json.dumps({"text": ["a"] * (2 * MB)}).encode(),
    "gzip": b"\x1f\x8b" + bytes(1000),
    "escapes": b'{"text":"' + b"\\u0000" * MB + b'"}',
}


@pytest.mark.parametrize("name", BOMBS)
def test_bodies_that_grow_when_they_are_read(target: Target, name: str) -> None:
    """What a body of some megabytes becomes is refused with a 400, and costs a bounded multiple of its length."""
    body = BOMBS[name]
    with harmless(target, extra_mb=60 + 60 * len(body) / MB):
        response = httpx.post(f"{target.url}/generate", content=body, timeout=60)
        assert response.status_code == 400
        assert list(response.json()) == ["error"]
        assert len(response.content) < 1000


def test_many_heavy_bodies_at_once(target: Target) -> None:
    """What they become takes many times their length, so few are understood at a time; 2.3 GB if all were."""
    body = b'{"text":"a","sampling_params":{"max_new_tokens":1,"stop_token_ids":[' + b"1," * (2 * MB - 10) + b"1]}}"
    with harmless(target, extra_mb=900), ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda _: httpx.post(f"{target.url}/generate", content=body, timeout=100), range(24)))
        assert {answer.status_code for answer in answers} == {200}


NOISE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\xff\xfe\xfd\r\n\r\n",
    b"GET /\xff\xfe\xc3 HTTP/1.1\r\nhost: t\r\n\r\n",
    b"GET /v1/models/%ff%c3%28 HTTP/1.1\r\nhost: t\r\n\r\n",
    b"GET /health?a=%ff\xff HTTP/1.1\r\nhost: t\r\n\r\n",
    b"GET /version HTTP/1.1\r\nhost: \xff\xfe\r\nauthorization: Bearer \xff\r\n\r\n",
    b"GET /version HTTP/1.1\r\nhost: t\r\nx-request-id: \xc3\x28\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nhost: t\r\ncontent-length: 12\r\n\r\n" + b'{"text":"\xc3("}'[:12],
    b"POST /generate HTTP/1.1\r\nhost: t\r\ncontent-length: -1\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"POST /generate HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    b"GET /version HTTP/9.9\r\n\r\n",
    b"\x00" * 5000,
]


def test_bytes_that_are_no_http_or_no_utf8(target: Target) -> None:
    generator = random.Random(1)
    with harmless(target, extra_mb=40):
        for noise in [*NOISE, *(generator.randbytes(200) + b"\r\n\r\n" for _ in range(50))]:
            answer = what_came(target.connect(), lambda peer, sent=noise: end(peer, sent))
            assert status_of(answer) < 500, (noise, answer)


def end(peer: socket.socket, sent: bytes) -> None:
    peer.sendall(sent)
    peer.shutdown(socket.SHUT_WR)


INVALID = [b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\xaf"]


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize("invalid", INVALID)
def test_texts_that_are_no_utf8_are_refused(target: Target, path: str, invalid: bytes) -> None:
    names: dict[str, Any] = {"/generate": "text", "/v1/chat/completions": "messages"}
    body = b'{"%b":"a' % names.get(path, "prompt").encode() + invalid + b'"}'
    response = httpx.post(f"{target.url}{path}", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("request body is not valid JSON: ")


def test_what_came_left_no_trace_of_a_panic(target: Target) -> None:
    """The last of this file: the server's log up to here."""
    assert target.server.process.stdout
    pipe, said = target.server.process.stdout.fileno(), b""
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        while part := os.read(pipe, 65536):
            said += part
    for word in (b"panic", b"Traceback", b"starting it again"):
        assert word not in said, said
