"""Both ends over a real socket: who reads slowly, hangs up or talks nonsense harms only itself."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from zerokl.wire.client import ControlError, EngineClient, EngineGone
from zerokl.wire.frames import Frame, encode
from zerokl.wire.messages import Abort, Answer, Control, Done, First, Hello, Submit
from zerokl.wire.records import Record, encode_step
from zerokl.wire.server import Connection, WireServer

HELLO = Hello(1, "print", 259, 4096)


class Echo:
    """An engine's end that answers each submit with its prompt, as one record."""

    def __init__(self) -> None:
        self.lost = threading.Event()
        self.aborted: list[int] = []
        self.silent = False

    def receive(self, connection: Connection, frame: Frame) -> None:
        message = frame.message
        if isinstance(message, Submit) and not self.silent:
            prompt = frame.ints(message.prompt, "i").tolist()
            done = Done(0, "length", len(prompt))
            connection.send(encode_step(1, [Record(message.rid, prompt, "", first=First(0, 0, 1, 0), done=done)]))
        elif isinstance(message, Abort):
            self.aborted.append(message.rid)
        elif isinstance(message, Control):
            connection.send(encode(Answer(message.call, message.name == "yes", '{"message":"so"}')))

    def gone(self, connection: Connection) -> None:
        self.lost.set()


@contextmanager
def serving(path, hello=HELLO, **limits) -> Iterator[tuple[WireServer, Echo]]:
    echo = Echo()
    server = WireServer(path, lambda: hello, echo.receive, echo.gone, **limits)
    server.start()
    try:
        yield server, echo
    finally:
        server.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "engine.sock"


async def collected(stream) -> list[Record]:
    return [record async for record in stream]


def test_many_requests_share_a_connection_and_none_is_mixed_up(path):
    async def run() -> None:
        client = await EngineClient.connect(path)
        assert client.greeting == HELLO
        prompts = [[number] * (number % 50 + 1) for number in range(200)]
        streams = [client.submit(prompt) for prompt in prompts]
        answers = await asyncio.gather(*(collected(stream) for stream in streams))
        assert [answer[0].tokens for answer in answers] == prompts
        assert client.num_streams == 0
        client.close()

    with serving(path):
        asyncio.run(run())


def test_control_calls_are_answered_or_refused(path):
    async def run() -> None:
        client = await EngineClient.connect(path)
        assert await client.control("yes") == {"message": "so"}
        with pytest.raises(ControlError, match="so"):
            await client.control("no")

    with serving(path):
        asyncio.run(run())


def test_another_protocol_number_is_refused(path):
    async def run() -> None:
        with pytest.raises(EngineGone, match="speaks protocol 2, this frontend 1"):
            await EngineClient.connect(path)

    with serving(path, Hello(2, "print", 259, 4096)):
        asyncio.run(run())


def test_no_engine_is_engine_gone(path):
    async def run() -> None:
        with pytest.raises(EngineGone, match="no engine answers") as caught:
            await EngineClient.connect(path, timeout_s=0.05)
        assert (caught.value.status, caught.value.code) == (503, "engine_down")

    asyncio.run(run())


def test_a_dead_engine_fails_every_stream_and_call(path):
    async def run(server: WireServer) -> None:
        client = await EngineClient.connect(path)
        stream = client.submit([1])
        call = asyncio.create_task(client.control("yes"))
        await asyncio.sleep(0)
        client._transport.abort()  # what the peer's death looks like here
        with pytest.raises(EngineGone):
            await collected(stream)
        with pytest.raises(EngineGone):
            await call
        with pytest.raises(EngineGone):
            client.submit([1])

    with serving(path) as (server, echo):
        echo.silent = True
        asyncio.run(run(server))


def test_a_discarded_stream_is_aborted_and_its_late_records_are_dropped(path):
    async def run(echo: Echo) -> None:
        client = await EngineClient.connect(path)
        stream = client.submit([1])
        stream.discard()
        assert await collected(stream) == []
        await client.control("yes")
        assert echo.aborted == [stream.rid]

    with serving(path) as (_, echo):
        asyncio.run(run(echo))


def test_a_lost_frontend_is_reported(path):
    with serving(path) as (server, echo):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(str(path))
        peer.recv(10)
        peer.close()
        assert echo.lost.wait(5)
        assert server.connections == []


def test_nonsense_closes_only_the_connection_it_came_on(path):
    with serving(path) as (_server, echo):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(str(path))
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert echo.lost.wait(5)
        asyncio.run(EngineClient.connect(path))


def stalled(path, server: WireServer) -> tuple[socket.socket, Connection]:
    """A frontend that reads its hello and never again."""
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(str(path))
    peer.recv(10)
    while not server.connections:
        time.sleep(0.001)
    return peer, server.connections[0]


def test_a_frontend_that_stops_reading_is_hung_up_on_in_time(path):
    with serving(path, stall_s=0.5) as (server, echo):
        peer, connection = stalled(path, server)
        started = time.monotonic()
        for _ in range(100):
            connection.send(b"\0" * 100_000)
        assert time.monotonic() - started < 0.5, "send waited for the socket"
        assert echo.lost.wait(5)
        assert not connection.open
        peer.close()


def test_a_frontend_that_stops_reading_is_hung_up_on_at_the_byte_limit(path):
    with serving(path, stall_s=60, max_queued_bytes=2_000_000) as (server, echo):
        peer, connection = stalled(path, server)
        for _ in range(100):
            connection.send(b"\0" * 100_000)
        assert echo.lost.wait(5)
        connection.send(b"\0")  # nobody is there: nothing happens
        peer.close()


def test_a_slow_reader_that_makes_progress_is_kept(path):
    """A reader that a busy machine kept from reading is no slow reader, but tried again."""
    stall_s = 0.5
    for _ in range(10):
        with serving(path, stall_s=stall_s) as (server, echo):
            longest, is_lost = read_slowly(path, server, echo, 2 * stall_s)
            if longest < stall_s / 2:
                assert not is_lost
                return
    pytest.fail("the machine was too busy ten times")


def read_slowly(path, server: WireServer, echo: Echo, seconds: float) -> tuple[float, bool]:
    """The longest pause between two reads of one long frame, read for so long; and whether it was hung up on."""
    peer, connection = stalled(path, server)
    payload = b"\0" * 6_000_000
    connection.send(payload)
    left, longest, started = len(payload) + len(encode(HELLO)) - 10, 0.0, time.monotonic()
    last = started
    while left:
        if last - started < seconds:
            time.sleep(0.02)
        received = len(peer.recv(min(left, 80_000)))
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
        if not received:
            return longest, True
        left -= received
    assert last - started >= seconds, "it was no test of slowness"
    is_lost = echo.lost.is_set()  # asked before it is lost because it leaves
    peer.close()
    return longest, is_lost


def test_a_socket_file_of_a_dead_engine_is_replaced(path):
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    with serving(path):
        asyncio.run(EngineClient.connect(path))
    assert not path.exists()
