"""A live frontend on a free port with a fake engine behind it, both on threads of the test's process."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.http.toy import write_toy_folder
from zerokl.config import Config
from zerokl.engine.fake import FakeOptions, fake_process
from zerokl.engine.process import EngineProcess
from zerokl.server.run import Frontend, make_app
from zerokl.wire.meeting import ENGINE_SOCKET

CLOCK = 1_700_000_000


@dataclass(slots=True)
class Live:
    """What a test needs of the server."""

    url: str
    client: httpx.Client
    frontend: Frontend
    folder: Path
    engine: EngineProcess

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.client.post(path, json=body, **options)

    def generate(self, **body: Any) -> Any:
        response = self.post("/generate", body)
        assert response.status_code == 200, response.text
        return response.json()


@contextlib.contextmanager
def live(
    script: Sequence[Mapping[str, Any]] = (),
    add_bos: bool = False,
    engine: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[Live]:
    """`engine`: fields of FakeOptions; the rest: fields of Config."""
    config = Config(**{"model": "toy", "test_clock": CLOCK, **options})
    with tempfile.TemporaryDirectory(prefix="zk") as name:
        folder = write_toy_folder(Path(name), add_bos)
        settings = {"script": script, "run_folder": str(folder), "context_length": 512, **(engine or {})}
        process = fake_process(FakeOptions(**settings), folder / ENGINE_SOCKET)
        engine_thread = threading.Thread(target=process.run)
        engine_thread.start()
        listener = socket.create_server(("127.0.0.1", 0))
        frontend = Frontend(make_app(config, folder))
        thread = threading.Thread(target=frontend.run, kwargs={"sockets": [listener]})
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with httpx.Client(base_url=url, timeout=30) as client:
                wait_until(lambda: client.get("/health").status_code == 200)
                yield Live(url, client, frontend, folder, process)
        finally:
            frontend.should_exit = True
            thread.join()
            process.call(lambda: process.drain(0.0))
            engine_thread.join()


def wait_until(condition: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
