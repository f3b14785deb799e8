"""A checkpoint behind a real engine and frontend, on threads of this process."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.http.toy import write_toy_folder
from zerokl.config import Config
from zerokl.engine.build import build_process
from zerokl.server.run import Frontend, make_app
from zerokl.wire.meeting import ENGINE_SOCKET


@contextlib.contextmanager
def served(config: Config, timeout_s: float = 60.0) -> Iterator[str]:
    """Its URL. The tokenizer is the toy one of 259 ids: the checkpoint need not bring any."""
    with tempfile.TemporaryDirectory(prefix="zk") as name:
        folder = write_toy_folder(Path(name))
        engine = build_process(config, folder, folder / ENGINE_SOCKET)
        listener = socket.create_server(("127.0.0.1", 0))
        frontend = Frontend(make_app(config, folder))
        threads = [
            threading.Thread(target=engine.run),
            threading.Thread(target=frontend.run, kwargs={"sockets": [listener]}),
        ]
        for thread in threads:
            thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            wait_for(url, timeout_s)
            yield url
        finally:
            frontend.should_exit = True
            threads[1].join()
            engine.call(lambda: engine.drain(0.0))
            threads[0].join()


def wait_for(url: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while httpx.get(f"{url}/health").status_code != 200:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{url} was not healthy in time")
        time.sleep(0.01)
