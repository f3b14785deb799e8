"""The ASGI app: finds the route, checks the key, and turns every error into the one error form."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from zerokl.server import cors, routes
from zerokl.server.auth import Access, Keys
from zerokl.server.errors import Refusal, refusal
from zerokl.server.exchange import Exchange, Gates, Message, Receive, Send
from zerokl.server.fields import message, shown
from zerokl.server.routes import Route
from zerokl.server.service import Service
from zerokl.server.tracing import tracing_of

log = logging.getLogger(__name__)


class App:
    """Raw ASGI, because headers, chunks and disconnects have to be exact. `startup` runs once, before serving."""

    def __init__(
        self, service: Service, startup: Callable[[], Awaitable[None]], shutdown: Callable[[], Awaitable[None]]
    ) -> None:
        self.service = service
        self._keys = Keys.of(service.config)
        self._tracing = tracing_of(service.config)
        service.engine.flights.meter.listener = self._tracing.sequence_ended
        self._gates = Gates()
        self._startup = startup
        self._shutdown = shutdown

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            exchange = Exchange(scope, receive, self.service.config.max_body_bytes, self._gates)
            route = routes.find(exchange.path)
            with self._tracing.request(exchange, route_name(route)):
                await self._exchange(exchange, route)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self._startup()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._shutdown()
        self._tracing.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _exchange(self, exchange: Exchange, route: Route | None) -> None:
        exchange.headers += self._common_headers(exchange)
        try:
            await self._answer(exchange, route)
        except ConnectionError:
            log.debug("%s %s: the client left", exchange.method, exchange.path)
        except Exception as error:  # noqa: BLE001 - the one place where errors become answers
            await self._fail(exchange, refusal(error, exchange.request_id))
        finally:
            exchange.understood()
        log.debug("%s %s %s: %d", exchange.request_id, exchange.method, exchange.path, exchange.status)
        self.service.engine.flights.meter.answers.add(path=route_name(route), status=str(exchange.status))

    async def _answer(self, exchange: Exchange, route: Route | None) -> None:
        if exchange.method == "OPTIONS":
            await self._options(exchange, route)
            return
        self._keys.admit(route.access if route else Access.USER, exchange.header(b"authorization"))
        if route is None:
            raise Refusal(404, message("not_found", value=shown(exchange.path)), code="not_found")
        if exchange.method not in route.methods:
            raise _not_allowed(exchange, route)
        await route.handler(self.service, exchange)

    async def _options(self, exchange: Exchange, route: Route | None) -> None:
        """A browser's preflight where CORS is on; else a method like any other."""
        if self.service.config.allow_origins and exchange.header(b"access-control-request-method"):
            await exchange.answer(200, headers=cors.PREFLIGHT)
        elif route is None:
            raise Refusal(404, message("not_found", value=shown(exchange.path)), code="not_found")
        else:
            raise _not_allowed(exchange, route)

    async def _fail(self, exchange: Exchange, error: Refusal) -> None:
        """A real status if nothing was sent; after a stream's head, a frame and the stream's end."""
        if exchange.finished:
            return
        try:
            if exchange.head_sent:
                await exchange.frame({"error": error.fields()})
                await exchange.close_stream()
            else:
                await exchange.answer(error.status, error.body(), headers=error.headers)
        except ConnectionError:
            log.debug("%s %s: the client left before its error", exchange.method, exchange.path)

    def _common_headers(self, exchange: Exchange) -> list[tuple[str, str]]:
        exchange.request_id = exchange.header(b"x-request-id").decode("latin-1") or self.service.clock.new_id()
        headers: list[tuple[str, str]] = [("x-request-id", exchange.request_id)]
        if fingerprint := self.service.engine.fingerprint:
            headers.append(("x-zerokl-fingerprint", fingerprint))
        if allowed := self.service.config.allow_origins:
            headers += cors.origin_headers(allowed, exchange.header(b"origin").decode("latin-1"))
        return headers


def route_name(route: Route | None) -> str:
    """For figures: clients may ask for any number of paths."""
    return route.path if route else "other"


def _not_allowed(exchange: Exchange, route: Route) -> Refusal:
    allowed = ", ".join(route.methods)
    text = message("method", method=exchange.method, value=shown(exchange.path), allowed=allowed)
    return Refusal(405, text, headers=(("allow", allowed),))
