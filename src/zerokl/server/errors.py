"""The one error form of every route, and how the error tree becomes it.

{"error":{"message":...,"type":...,"param":null or string,"code":null or string}}
"""

from __future__ import annotations

import logging

import orjson

from zerokl.errors import CallerError, InvalidRequest, NoRoom, ZeroklError
from zerokl.server.fields import message
from zerokl.wire.client import EngineGone

log = logging.getLogger(__name__)

Headers = tuple[tuple[str, str], ...]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
_HEADERS: dict[int, Headers] = {
    401: (("www-authenticate", "Bearer"),),
    # The OpenAI client retries 409 of its own accord, which can't help here.
    409: (("x-should-retry", "false"),),
    429: (("retry-after", "1"),),
}


class Refusal(ZeroklError):
    """An error answer that is settled: status, code and headers beyond what the status itself brings."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, headers: Headers = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = _HEADERS.get(status, ()) + headers

    def body(self) -> bytes:
        return orjson.dumps({"error": self.fields()})

    def fields(self) -> dict[str, str | None]:
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"message": str(self), "type": kind, "param": self.param, "code": self.code}


def refusal(error: Exception, request_id: str) -> Refusal:
    """Any error as an answer. What is not the caller's fault is logged with its trace and answered without."""
    match error:
        case Refusal():
            return error
        case InvalidRequest():
            return Refusal(error.status, str(error), param=error.param, code=error.code)
        case EngineGone():
            return Refusal(503, message("engine_lost"), code="engine_down")
        case NoRoom():
            return Refusal(error.status, str(error), code=error.code)
        case CallerError():
            return Refusal(400, str(error))
        case _:
            log.error("request %s failed", request_id, exc_info=error)
            return Refusal(500, message("internal"))
