"""The API as an OpenAPI document, made from the route and field tables, and a page that shows it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import zerokl
from zerokl.server.auth import Access
from zerokl.server.exchange import Exchange
from zerokl.server.fields import Field, table
from zerokl.server.service import Service

HTML = "text/html; charset=utf-8"

_JSON_TYPES: dict[str, list[dict[str, Any]]] = {
    "bool": [{"type": "boolean"}],
    "int": [{"type": "integer"}],
    "float": [{"type": "number"}],
    "str": [{"type": "string"}],
    "text_or_list": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    "stops": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    "text_or_object": [{"type": "string"}, {"type": "object"}],
    "object": [{"type": "object"}],
    "object_or_list": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}],
    "list": [{"type": "array", "items": {}}],
    "ids": [{"type": "array", "items": {"type": "integer"}}],
    "ids_or_list": [{"type": "array", "items": {}}],
    "prompt": [{"type": "string"}, {"type": "array", "items": {}}],
    "id_numbers": [{"type": "object", "additionalProperties": {"type": "number"}}],
    "unset": [{}],
    "null": [{"type": "null"}],
}


async def openapi(service: Service, exchange: Exchange) -> None:
    await exchange.answer_json(document())


async def docs(service: Service, exchange: Exchange) -> None:
    await exchange.answer(200, page(), HTML)


@cache
def page() -> bytes:
    return files("zerokl.server").joinpath("docs.html").read_bytes()


def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    from zerokl.server.routes import ROUTES

    paths: dict[str, Any] = {}
    for route in ROUTES:
        operation: dict[str, Any] = {"summary": route.summary, "responses": responses(route.access)}
        if route.path == "/update_weights_from_disk":  # SGLang's own form, also where it fails
            operation["responses"]["400"] = {"description": "success is false; message says why."}
        if route.fields:
            operation["requestBody"] = {"content": {"application/json": {"schema": schema(route.fields)}}}
        if "{id}" in route.path:
            operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
        paths[route.path] = {method.lower(): operation for method in route.methods}
    return {
        "openapi": "3.1.0",
        "info": {"title": "zerokl", "version": zerokl.__version__},
        "paths": paths,
        "components": {"schemas": {"Error": ERROR}, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def responses(access: Access) -> dict[str, Any]:
    """The one error form, by class of status."""
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    texts = {"4XX": "What was wrong, and what is allowed.", "503": "The engine is starting, draining or down."}
    if access is not Access.OPEN:
        texts["401"] = "A key is needed."
    return {
        "200": {"description": "OK"},
        **{status: {"description": t, "content": error} for status, t in texts.items()},
    }


_NULLABLE = {"type": ["string", "null"]}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _NULLABLE,
                "code": _NULLABLE,
            },
        }
    },
}


def schema(name: str) -> dict[str, Any]:
    """One table of fields as JSON schema."""
    fields = table(name)
    required = [field.name for field in fields if field.required]
    return {
        "type": "object",
        "properties": {field.name: _property(field) for field in fields},
        **({"required": required} if required else {}),
    }


def _property(field: Field) -> dict[str, Any]:
    kinds = [dict(kind) for kind in _JSON_TYPES[field.type]]
    if field.fields:
        kinds = [schema(field.fields), *kinds[1:]]
    for kind in kinds:
        if kind.get("type") in ("integer", "number"):
            bounds = {"minimum": field.min, "maximum": field.max, "exclusiveMinimum": field.above}
            kind.update({key: value for key, value in bounds.items() if value is not None})
    if field.per_prompt:
        kinds.append({"type": "array", "items": dict(kinds[0])})
    shape = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return {**shape, "description": field.help, "default": field.default}
