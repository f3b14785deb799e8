"""The one table of routes: who may call them, with which methods, and who answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from zerokl.server import control, documents, facts, health, metrics, playground, tokenizing
from zerokl.server.auth import Access
from zerokl.server.chat import chat_completions
from zerokl.server.completions import completions
from zerokl.server.exchange import Exchange
from zerokl.server.generate import generate
from zerokl.server.service import Service

Handler = Callable[[Service, Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    methods: tuple[str, ...]
    access: Access
    handler: Handler
    summary: str
    fields: str = ""
    """The table of its body in fields.json."""


GET = ("GET",)
POST = ("POST",)
PROBED = ("GET", "HEAD")
OPEN, USER, ADMIN = Access.OPEN, Access.USER, Access.ADMIN

ROUTES = (
    Route("/generate", ("POST", "PUT"), USER, generate, "Generate or score, SGLang's native form.", "generate"),
    Route("/v1/completions", POST, USER, completions, "OpenAI's completions.", "completions"),
    Route("/v1/chat/completions", POST, USER, chat_completions, "OpenAI's chat completions.", "chat"),
    Route("/v1/models", GET, USER, facts.models, "The model served."),
    Route("/v1/models/{id}", GET, USER, facts.one_model, "One model's card; the id may hold slashes."),
    Route("/health", PROBED, OPEN, health.health, "200 if requests can be taken; never touches the device."),
    Route("/ping", PROBED, OPEN, health.health, "The same as /health."),
    Route("/ready", PROBED, OPEN, health.health, "The same as /health."),
    Route("/health_generate", PROBED, OPEN, health.health_generate, "200 after one real token."),
    Route("/server_info", GET, USER, facts.server_info, "The resolved config and live values."),
    Route("/get_server_info", GET, USER, facts.server_info, "The same as /server_info."),
    Route("/model_info", GET, USER, facts.model_info, "The model and its tokenizer."),
    Route("/get_model_info", GET, USER, facts.model_info, "The same as /model_info."),
    Route("/version", GET, USER, facts.version, "zerokl's version."),
    Route("/tokenize", POST, USER, tokenizing.tokenize, "Text or messages to ids.", "tokenize"),
    Route("/v1/tokenize", POST, USER, tokenizing.tokenize, "The same as /tokenize.", "tokenize"),
    Route("/detokenize", POST, USER, tokenizing.detokenize, "Ids to text.", "detokenize"),
    Route("/v1/detokenize", POST, USER, tokenizing.detokenize, "The same as /detokenize.", "detokenize"),
    Route("/tokenizer_info", GET, USER, tokenizing.tokenizer_info, "Special tokens and the chat template."),
    Route(
        "/flush_cache",
        ("GET", "POST"),
        ADMIN,
        control.flush_cache,
        "Empty the prefix cache; ?timeout=s waits; ?tier=device leaves the host tier.",
    ),
    Route("/reset_prefix_cache", POST, ADMIN, control.flush_cache, "The same as /flush_cache."),
    Route("/abort_request", POST, ADMIN, control.abort_request, "End a request by its rid.", "abort_request"),
    Route(
        "/update_weights_from_disk",
        POST,
        ADMIN,
        control.update_weights_from_disk,
        "Not supported yet: answers 400.",
        "update_weights_from_disk",
    ),
    Route("/metrics", GET, OPEN, metrics.metrics, "Counters and gauges for Prometheus."),
    Route("/", GET, OPEN, playground.playground, "A page to try a prompt; --disable-playground turns it off."),
    Route("/docs", GET, USER, documents.docs, "This API, to try out."),
    Route("/openapi.json", GET, USER, documents.openapi, "This API as an OpenAPI document."),
)

_BY_PATH = {route.path: route for route in ROUTES}
_MODEL_CARD = _BY_PATH["/v1/models/{id}"]


def find(path: str) -> Route | None:
    """The route of a path; exact, so a trailing slash is another path."""
    route = _BY_PATH.get(path)
    if route is None and path.startswith("/v1/models/") and len(path) > len("/v1/models/"):
        return _MODEL_CARD
    return route
