"""Runs of the checker against the fake server, without a socket."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable

import pytest
from rich.console import Console

from tests.check.fake_engine import FakeEngine
from tests.check.fake_peers import FakeSGLang
from tests.check.fake_server import FakeServer, InProcess
from zerokl.check.checking import Options, run_check
from zerokl.check.run import Report

NEED_SGLANG = ("old_weights",)
"""Defects behind a route that zerokl's own server doesn't have."""


def restarting(app: FakeServer) -> Callable[[], Awaitable[None]]:
    """The server is away for a moment and comes back as new."""

    async def restart() -> None:
        trouble, app.trouble = app.trouble, lambda path, count: "dead"
        await asyncio.sleep(0.1)
        app.engine.restart()
        app.trouble = trouble

    return restart


RunCheck = Callable[..., Report]


@pytest.fixture
def run_fake() -> RunCheck:
    """run_fake(defect, *cases, trouble=..., **options) -> the report on a fake server with that defect planted."""

    def run(
        defect: str = "",
        *cases: str,
        trouble: Callable[[str, int], str] = lambda path, count: "",
        engine: FakeEngine | None = None,
        **options: object,
    ) -> Report:
        options.setdefault("diagnose", False)
        kind = FakeSGLang if defect in NEED_SGLANG else FakeServer
        app = kind(engine or FakeEngine(defect), trouble)
        options.setdefault("restart", restarting(app))
        options.setdefault("other_weights", "other")
        transports = {"http://fake": InProcess(app)}
        chosen = Options("http://fake", cases=cases, transports=transports, **options)  # type: ignore[arg-type]
        return asyncio.run(run_check(chosen, Console(file=io.StringIO())))

    return run
