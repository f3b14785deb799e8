"""docs/http-api.md, made from the route and field tables, with a curl line for each route."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from zerokl.server.fields import Field, table
from zerokl.server.routes import ROUTES, Route

EXAMPLES = {
    "/generate": ' -d \'{"text":"The sea is","sampling_params":{"max_new_tokens":8,"temperature":0}}\'',
    "/v1/completions": ' -d \'{"prompt":"The sea is","max_tokens":8,"temperature":0}\'',
    "/v1/chat/completions": ' -d \'{"messages":[{"role":"user","content":"Hello"}],"max_tokens":8}\'',
    "/tokenize": ' -d \'{"prompt":"The sea is"}\'',
    "/v1/tokenize": ' -d \'{"prompt":"The sea is"}\'',
    "/detokenize": " -d '{\"tokens\":[504,1234]}'",
    "/v1/detokenize": " -d '{\"tokens\":[504,1234]}'",
    "/abort_request": ' -d \'{"rid":"mine"}\'',
    "/update_weights_from_disk": ' -d \'{"model_path":"folder"}\'',
    "/flush_cache": " -X POST",
    "/reset_prefix_cache": " -X POST",
}
URL = "http://127.0.0.1:30000"
NESTED = ("sampling_params", "stream_options", "response_format")


def page() -> str:
    """The whole page."""
    return "\n".join([*_head(), *_routes(), *_bodies()]) + "\n"


def curl(route: Route) -> str:
    """A line that works against a running server."""
    path = route.path.replace("{id}", "$(curl -s " + URL + '/v1/models | sed \'s/.*"id":"\\([^"]*\\)".*/\\1/\')')
    flags = "-sf" if "HEAD" in route.methods else "-s"  # what a probe says is its status alone
    return f"curl {flags} {URL}{path}{EXAMPLES.get(route.path, '')}"


def _head() -> list[str]:
    return [
        "# HTTP API",
        "",
        "Made by `make docs` from `server/routes.py` and `server/fields.json`.",
        "Bodies are JSON whatever the content type.",
        'null means "not given". Every error is `{"error":{"message","type","param","code"}}`.',
        f"To wait until the server is ready: `until curl -sf {URL}/health; do sleep 1; done`",
        "(without `-f` curl takes a 503 for success).",
        "",
    ]


def _routes() -> Iterator[str]:
    yield from ("## Routes", "", "| route | methods | key | |", "|---|---|---|---|")
    for route in ROUTES:
        yield f"| `{route.path}` | {', '.join(route.methods)} | {route.access.value} | {route.summary} |"
    yield from ("", "```sh", *(curl(route) for route in ROUTES), "```")


def _bodies() -> Iterator[str]:
    shown = {route.fields: route.path for route in reversed(ROUTES) if route.fields}
    for name, path in [*((name, path) for name, path in shown.items()), *((name, "") for name in NESTED)]:
        yield from (
            "",
            f"## {f'`{path}`' if path else f'`{name}`'}",
            "",
            "| key | must be | default | |",
            "|---|---|---|---|",
        )
        yield from map(_row, table(name))


def _row(field: Field) -> str:
    default = "required" if field.required else f"`{orjson.dumps(field.default).decode()}`"
    many = ", or a list with one per prompt" if field.per_prompt else ""
    return f"| `{field.name}` | {field.expected}{many} | {default} | {field.help} |"
