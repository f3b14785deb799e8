"""Routes that change the server or stop requests: cache, aborts, weights."""

from __future__ import annotations

import math
from urllib.parse import parse_qsl

import orjson

from zerokl.errors import InvalidRequest
from zerokl.server.exchange import TEXT, Exchange
from zerokl.server.fields import message
from zerokl.server.service import Service
from zerokl.server.validate import bad_value, check
from zerokl.wire.client import ControlError

LONGEST_FLUSH_S = 3600.0


async def flush_cache(service: Service, exchange: Exchange) -> None:
    """Only an idle engine flushes; with a timeout it is waited for. `tier=device` leaves the host tier, at any time."""
    timeout_s = _timeout(exchange)
    if _query(exchange).get("tier") == "device":
        await service.engine.control("flush_device_cache")
        await exchange.answer(200, b"Device cache flushed.\n", TEXT)
        return
    try:
        async with exchange.client_watched():
            await service.engine.control("flush_cache", timeout_s=timeout_s)
    except ControlError:
        raise InvalidRequest(message("busy", running=len(service.engine.flights)), code="busy") from None
    await exchange.answer(200, b"Cache flushed.\n", TEXT)


def _query(exchange: Exchange) -> dict[str, str]:
    return dict(parse_qsl(exchange.query.decode("latin-1")))


def _timeout(exchange: Exchange) -> float:
    """The query's `timeout` in seconds; absent or empty: don't wait."""
    given = _query(exchange).get("timeout", "0")
    try:
        timeout_s = float(given) if given.isascii() else math.nan  # other scripts' digits are numbers to Python alone
    except ValueError:
        timeout_s = math.nan
    if not 0 <= timeout_s <= LONGEST_FLUSH_S:
        raise bad_value("timeout", f"a number of seconds from 0 to {LONGEST_FLUSH_S:g}", given)
    return timeout_s


async def abort_request(service: Service, exchange: Exchange) -> None:
    """Aborted requests end normally, with finish reason abort and the tokens so far. An unknown rid is no error."""
    values = check("abort_request", await exchange.json())
    rid, everything = values["rid"], values["abort_all"]
    if not rid and not everything:
        raise InvalidRequest(message("abort_needs"))
    service.engine.flights.abort(None if everything else rid)
    await exchange.answer(200)


async def update_weights_from_disk(service: Service, exchange: Exchange) -> None:
    check("update_weights_from_disk", await exchange.json())
    answer = {"success": False, "message": message("weights"), "num_paused_requests": 0}
    await exchange.answer(400, orjson.dumps(answer))
