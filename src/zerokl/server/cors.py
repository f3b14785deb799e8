"""Cross-origin headers, off unless --allow-origins names somebody."""

from __future__ import annotations

from zerokl.server.errors import Headers

EXPOSED = "x-request-id, x-zerokl-fingerprint, x-zerokl-seed"


def origin_headers(allowed: tuple[str, ...], origin: str) -> Headers:
    """For every answer to an origin that is allowed."""
    if not origin or not allowed or ("*" not in allowed and origin not in allowed):
        return ()
    named = "*" if "*" in allowed else origin
    vary: Headers = () if named == "*" else (("vary", "origin"),)
    return (("access-control-allow-origin", named), *vary, ("access-control-expose-headers", EXPOSED))


PREFLIGHT: Headers = (
    ("access-control-allow-methods", "GET, HEAD, OPTIONS, POST, PUT"),
    ("access-control-allow-headers", "*, authorization, content-type"),
    ("access-control-max-age", "600"),
)
