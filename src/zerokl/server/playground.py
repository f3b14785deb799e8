"""The page at /: a prompt, its tokens as they come, and how likely each was. One file that loads nothing else."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from zerokl.server.errors import Refusal
from zerokl.server.exchange import Exchange
from zerokl.server.fields import message, shown
from zerokl.server.service import Service

HTML = "text/html; charset=utf-8"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def playground(service: Service, exchange: Exchange) -> None:
    if service.config.disable_playground:
        raise Refusal(404, message("not_found", value=shown(exchange.path)), code="not_found")
    await exchange.answer(200, page(), HTML, headers=(("content-security-policy", POLICY),))


@cache
def page() -> bytes:
    return files("zerokl.server").joinpath("playground.html").read_bytes()
