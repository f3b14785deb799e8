"""One replica: a server of its own on this machine, and its answers, piece by piece."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import httpx

from zerokl.errors import EngineError
from zerokl.serve_ray.asked import HOP_BY_HOP, Asked

log = logging.getLogger(__name__)

POLL_S = 0.2
HEALTH_TIMEOUT_S = 10.0
END_S = 5.0

Head = tuple[int, list[tuple[str, str]]]
"""Status and headers."""


class Replica:
    """Ray makes one per replica, asks `check_health` now and then, and starts another when that raises."""

    async def __init__(self, flags: list[str]) -> None:  # type: ignore[misc]  # Ray awaits it
        """Returns when the server can answer. Raises EngineError if it can't start."""
        self._port = free_port()
        self._name = f"{socket.gethostname()}:{self._port}"
        read, self._lifeline = os.pipe()
        command = [sys.executable, "-m", "zerokl.serve_ray.server", str(read), *flags, "--frontend", "python"]
        self._process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(self._port)], pass_fds=(read,), start_new_session=True
        )
        os.close(read)
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self._port}", timeout=None, limits=limits)
        while not await self._is_well():
            if self._process.poll() is not None:
                raise EngineError(f"the server ended with status {self._process.returncode}; its log says why")
            await asyncio.sleep(POLL_S)
        threading.Thread(target=self._end_with_server, name="server", daemon=True).start()

    def _end_with_server(self) -> None:
        """An actor without its server would fail request after request until Ray next asks how it is."""
        log.warning("the server ended with status %d, and so does its actor", self._process.wait())
        os._exit(1)

    async def check_health(self) -> None:
        """Raises EngineError."""
        if self._process.poll() is not None or not await self._is_well():
            raise EngineError("the server is not well")

    async def _is_well(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return (await self._client.get("/health", timeout=HEALTH_TIMEOUT_S)).status_code == 200
        return False

    async def answer(self, asked: Asked) -> AsyncIterator[Head | bytes]:
        """The head, then the body's pieces. A client that leaves ends the request here too."""
        request = self._client.build_request(asked.method, asked.target, headers=asked.headers, content=asked.body)
        try:
            response = await self._client.send(request, stream=True)
        except httpx.TransportError:
            await asyncio.sleep(END_S)  # if the server is gone, so is this actor, and then another one is asked
            raise
        try:
            headers = [(name, value) for name, value in response.headers.multi_items() if name not in HOP_BY_HOP]
            headers.append(("x-zerokl-replica", self._name))
            yield response.status_code, headers
            async for piece in response.aiter_raw():
                yield piece
        finally:
            await response.aclose()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
