"""Many connections to one server: how many at a time, which is used again, and that a failure gives its place back."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest

from zerokl.check.connections import Connections

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


@asynccontextmanager
async def server(go_on: asyncio.Event):
    """Answers when told to; gives its URL and a list of the connections that came."""
    came: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer)
        while await reader.readuntil(b"\r\n\r\n"):
            await go_on.wait()
            writer.write(HEAD + b"ok")

    running = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}", came
    finally:
        running.close()
        for writer in came:
            writer.close()


def test_as_many_as_allowed_run_at_a_time_each_on_its_own_pool_and_all_are_used_again():
    async def run() -> None:
        go_on = asyncio.Event()
        connections = Connections(3)
        async with server(go_on) as (url, came), httpx.AsyncClient(transport=connections, trust_env=False) as http:
            asking = [asyncio.create_task(http.get(url)) for _ in range(7)]
            while len(came) < 3:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
            assert len(came) == len(connections.pools) == 3
            go_on.set()
            assert [answer.text for answer in await asyncio.gather(*asking)] == ["ok"] * 7
            assert (await http.get(url)).text == "ok"
            assert len(came) == len(connections.pools) == 3

    asyncio.run(run())


def test_a_request_that_fails_gives_its_place_back():
    async def run() -> None:
        connections = Connections(1)
        async with httpx.AsyncClient(transport=connections, trust_env=False) as http:
            for _ in range(3):
                with pytest.raises(httpx.ConnectError):
                    await asyncio.wait_for(http.get("http://127.0.0.1:9"), 5)

    asyncio.run(run())


def test_a_stream_that_is_left_early_gives_its_place_back():
    async def run() -> None:
        go_on = asyncio.Event()
        go_on.set()
        connections = Connections(1)
        async with server(go_on) as (url, _), httpx.AsyncClient(transport=connections, trust_env=False) as http:
            for _ in range(2):
                async with http.stream("GET", url) as answer:
                    assert answer.status_code == 200
            assert (await asyncio.wait_for(http.get(url), 5)).text == "ok"

    asyncio.run(run())
