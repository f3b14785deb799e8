"""Control calls of frontends, answered on the loop's thread between steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct

from zerokl.errors import CallerError, ConfigError
from zerokl.types import Finish
from zerokl.wire.frames import encode
from zerokl.wire.messages import Answer, Control
from zerokl.wire.server import Connection

if TYPE_CHECKING:
    from zerokl.engine.process import EngineProcess

log = logging.getLogger(__name__)

DRAIN_S = 30.0


class WaitingFlush(Struct, frozen=True):
    """A flush that waits for the engine to be idle."""

    answer: Callable[[bool, dict[str, Any]], None]
    until: float


class Controls:
    """Takes calls and answers each once; a call that has to wait is settled by a later turn of the loop."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process
        self._flushes: list[WaitingFlush] = []
        self._started_at = time.monotonic()
        self._calls: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "server_info": self._server_info,
            "abort_all": self._abort_all,
            "flush_device_cache": self._flush_device_cache,
            "shutdown": self._shutdown,
        }

    @property
    def next_due(self) -> float:
        """When `settle` has something to do at the latest."""
        return min((flush.until for flush in self._flushes), default=float("inf"))

    def take(self, connection: Connection, message: Control) -> None:
        """Answer, or remember. What the caller got wrong is an answer too."""

        def answer(ok: bool, body: dict[str, Any]) -> None:
            connection.send(encode(Answer(message.call, ok, orjson.dumps(body).decode())))

        try:
            args = arguments(message.args)
            if message.name == "flush_cache":
                self._flushes.append(WaitingFlush(answer, time.monotonic() + seconds(args, "timeout_s", 0.0)))
            elif message.name in self._calls:
                answer(True, self._calls[message.name](args))
            else:
                raise ConfigError(f"unknown control call {message.name!r}: {', '.join(self._calls)}, flush_cache")
        except CallerError as error:
            answer(False, {"message": str(error)})

    def settle(self, now: float) -> None:
        """Flush if the engine is idle; refuse those whose time is over."""
        if not self._flushes:
            return
        flushed = self._process.engine.flush_cache()
        for flush in self._flushes:
            if flushed:
                flush.answer(True, {"flushed": True})
            elif now >= flush.until:
                flush.answer(False, {"message": "requests are running or waiting"})
        self._flushes = [] if flushed else [flush for flush in self._flushes if now < flush.until]

    def _server_info(self, args: dict[str, Any]) -> dict[str, Any]:
        return {**self._process.engine.stats.as_dict(), "uptime_s": time.monotonic() - self._started_at}

    def _abort_all(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"aborted": self._process.abort_all(Finish("abort", None, str(args.get("message", "Aborted"))))}

    def _flush_device_cache(self, args: dict[str, Any]) -> dict[str, Any]:
        self._process.engine.flush_device_cache()
        return {"flushed": True}

    def _shutdown(self, args: dict[str, Any]) -> dict[str, Any]:
        self._process.drain(seconds(args, "timeout_s", DRAIN_S))
        return {"draining": True}


def arguments(source: str) -> dict[str, Any]:
    try:
        args = orjson.loads(source)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"the arguments are no JSON: {error}") from error
    if not isinstance(args, dict):
        raise ConfigError("the arguments are no JSON object")
    return args


def seconds(args: dict[str, Any], name: str, default: float) -> float:
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ConfigError(f"{name} is {value!r}: seconds, at least 0")
    return float(value)
