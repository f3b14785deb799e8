"""A live frontend on a free port with a fake engine behind it, both on threads of the test's process.

`FRONTEND.kind` says which one; tests that reach into it are for Python's alone.
"""

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
from zerokl._native import HttpServer
from zerokl.cli.run_folder import write_config
from zerokl.config import Config
from zerokl.engine.fake import FakeOptions, fake_process
from zerokl.engine.process import EngineProcess
from zerokl.server.run import Frontend, make_app
from zerokl.wire.meeting import ENGINE_SOCKET

CLOCK = 1_700_000_000


@dataclass(slots=True)
class Chosen:
    """Which frontend `live` starts, and what it is told beyond its config (Rust's limits)."""

    kind: str = "python"
    limits: Mapping[str, float] = ()  # type: ignore[assignment]


FRONTEND = Chosen()


@dataclass(slots=True)
class Live:
    """What a test needs of the server."""

    url: str
    client: httpx.Client
    frontend: Frontend
    """Python's; a Rust server has none."""
    folder: Path
    engine: EngineProcess

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.client.post(path, json=body, **options)

    def generate(self, **body: Any) -> Any:
        response = self.post("/generate", body)
        assert response.status_code == 200, response.text
        return response.json()

    def in_flight(self) -> int:
        """Requests that the frontend has taken in."""
        for line in self.client.get("/metrics").text.splitlines():
            if line.startswith("zerokl:num_requests_in_flight{"):
                return int(line.rpartition(" ")[2])
        raise AssertionError("/metrics doesn't count requests")


@contextlib.contextmanager
def live(
    script: Sequence[Mapping[str, Any]] = (),
    add_bos: bool = False,
    engine: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[Live]:
    """`engine`: fields of FakeOptions; the rest: fields of Config."""
    with live_each((FRONTEND.kind,), script, add_bos, engine, **options) as [one]:
        yield one


@contextlib.contextmanager
def live_each(
    kinds: Sequence[str],
    script: Sequence[Mapping[str, Any]] = (),
    add_bos: bool = False,
    engine: Mapping[str, Any] | None = None,
    template: str | None = None,
    **options: Any,
) -> Iterator[list[Live]]:
    """Several frontends of one engine."""
    config = Config(**{"model": "toy", "test_clock": CLOCK, **options})
    with tempfile.TemporaryDirectory(prefix="zk") as name:
        folder = write_toy_folder(Path(name), add_bos)
        if template is not None:
            (folder / "chat_template.jinja").write_text(template)
        write_config(folder, config)
        settings = {"script": script, "run_folder": str(folder), "context_length": 512, **(engine or {})}
        process = fake_process(FakeOptions(**settings), folder / ENGINE_SOCKET)
        engine_thread = threading.Thread(target=process.run)
        engine_thread.start()
        with contextlib.ExitStack() as stack:
            stack.callback(engine_thread.join)
            stack.callback(process.call, lambda: process.drain(0.0))
            yield [stack.enter_context(started(kind, config, folder, process)) for kind in kinds]


@contextlib.contextmanager
def started(kind: str, config: Config, folder: Path, process: EngineProcess) -> Iterator[Live]:
    """One frontend, until it is no longer wanted."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    frontend: Any = None
    if kind == "rust":
        server = HttpServer(str(folder), listener.detach(), drain_s=1.0, **dict(FRONTEND.limits))
        run, end = lambda: server.run(signals=False), server.stop
    else:
        frontend = Frontend(make_app(config, folder))
        run, end = lambda: frontend.run(sockets=[listener]), lambda: setattr(frontend, "should_exit", True)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        with httpx.Client(base_url=url, timeout=30) as client:
            wait_until(lambda: thread.is_alive() and client.get("/health").status_code == 200)
            yield Live(url, client, frontend, folder, process)
    finally:
        end()
        thread.join()


def wait_until(condition: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
