"""The frontend around its app: uvicorn with uvloop and httptools, the run folder's tokenizer, a drain at the end."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import FrameType

import uvicorn

from zerokl._native import trim_memory
from zerokl.config import Config
from zerokl.server.app import App
from zerokl.server.clock import Clock
from zerokl.server.connection import Connection
from zerokl.server.engine import Engine
from zerokl.server.service import Service
from zerokl.tokenizer import Tokenizer
from zerokl.wire.meeting import DRAIN_S, ENGINE_SOCKET

KEEP_ALIVE_S = 75


def make_app(config: Config, run_folder: Path) -> App:
    """The app, which connects to the engine when it starts and for as long as it lives."""
    clock = Clock(config.test_clock)
    places = config.max_running_requests + config.max_queued_requests
    engine = Engine(run_folder / ENGINE_SOCKET, places, config.watchdog_timeout)
    service = Service(config, engine, Tokenizer.load(run_folder), clock, started_at=clock.now())
    began = time.perf_counter()

    async def startup() -> None:
        engine.start(lambda: setattr(service, "startup_s", clock.elapsed(began)))

    return App(service, startup, engine.stop)


class Frontend(uvicorn.Server):
    """A signal first makes it refuse new requests, then lets the open ones end."""

    def __init__(self, app: App, log_level: str = "warning") -> None:
        self.app = app
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=Connection,
                ws="none",
                lifespan="on",
                log_config=None,
                log_level=log_level,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                date_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=DRAIN_S,
                backlog=4096,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.app.service.engine.draining = True
        super().handle_exit(sig, frame)


def serve(config: Config, run_folder: Path, listener: socket.socket) -> None:
    """Answer on the listening socket until a signal ends it."""
    frontend = Frontend(make_app(config, run_folder))
    trim_memory()
    frontend.run(sockets=[listener])
