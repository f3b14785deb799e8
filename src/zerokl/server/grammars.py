"""What a request says about the form of its output, as one grammar for the engine."""

from __future__ import annotations

from typing import Any

import orjson

from zerokl.errors import InvalidRequest
from zerokl.server.fields import message
from zerokl.server.validate import Values, bad_value
from zerokl.wire.messages import Grammar

GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


def grammar_of(values: Values, prefix: str = "") -> Grammar | None:
    """The one grammar given by name; "" counts as unset."""
    given = [name for name in GRAMMARS if values.get(name) not in (None, "")]
    if len(given) > 1:
        raise InvalidRequest(message("one_grammar", given=" and ".join(given)), param=prefix + given[1])
    return Grammar(given[0], _source(values[given[0]])) if given else None


def openai_grammar(values: Values) -> Grammar | None:
    """From response_format or from one of the extensions, not from both."""
    named, formatted = grammar_of(values), _formatted(values["response_format"])
    if named and formatted:
        text = message("one_grammar", given=f"response_format and {named.kind}")
        raise InvalidRequest(text, param=named.kind)
    return named or formatted


def _formatted(given: Values | None) -> Grammar | None:
    match given and given["type"]:
        case "json_object":
            return Grammar("json_schema", '{"type":"object"}')
        case "json_schema":
            return Grammar("json_schema", _source(_schema(given)))
        case "structural_tag":
            return Grammar("structural_tag", _source(given))
        case _:
            return None


def _schema(given: Values | None) -> Any:
    described = (given or {})["json_schema"]
    if described is None:
        raise bad_value("response_format.json_schema", "an object", None)
    schema = described.get("schema", {})
    if not isinstance(schema, dict):
        raise bad_value("response_format.json_schema.schema", "an object", schema)
    return schema


def _source(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
