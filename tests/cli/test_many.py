"""A thousand streams and two thousand idle connections at once: all are answered, and memory stays bounded."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.served import Served, served
from tests.http.live import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

STREAMS, IDLE, TOKENS = 1000, 2000, 40
FILES = 8192


@pytest.fixture(scope="module", autouse=True)
def files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"at most {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))


async def stream(port: int, number: int) -> list[int]:
    """The tokens of one stream, read to its end."""
    params = {"max_new_tokens": TOKENS, "ignore_eos": True, "sampling_seed": number}
    body = json.dumps({"text": f"stream {number % 50}", "stream": True, "sampling_params": params}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = (await reader.read()).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 200"), answer[:300]
    frames = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: ")]
    assert frames[-1] == "[DONE]"
    tokens: list[int] = json.loads(frames[-2])["output_ids"]
    return tokens


def resident_mb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 >> 20


async def everything(port: int) -> list[list[int]]:
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(IDLE)]
    try:
        return await asyncio.gather(*(stream(port, number % 50) for number in range(STREAMS)))
    finally:
        for _, writer in idle:
            writer.close()


def test_a_thousand_streams_beside_two_thousand_idle_connections() -> None:
    with served() as server:
        port: Any = server.client.base_url.port
        alone = asyncio.run(stream_some(port))
        before = frontend_mb(server)
        answers = asyncio.run(everything(port))
        assert [alone[number % 50] for number in range(STREAMS)] == answers
        wait_until(lambda: server.client.get("/server_info").json()["num_requests_in_flight"] == 0)
        assert frontend_mb(server) < before + 200


async def stream_some(port: int) -> dict[int, list[int]]:
    return {number: await stream(port, number) for number in range(50)}


def frontend_mb(server: Served) -> int:
    [frontend] = server.children("zerokl.cli.frontend")
    return resident_mb(frontend)
