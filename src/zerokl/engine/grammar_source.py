"""What a client writes as a grammar, in llguidance's own form: JSON schema, regex, EBNF, structural tag.

Whether it compiles shows later, in `grammar.py`; here only what isn't even of the kind's form is refused (ValueError).
"""

from __future__ import annotations

import json
from typing import Any

MAX_CHARS = 1 << 20
WHITESPACE = r"[ \n\t\r]{0,32}"
"""Between JSON's tokens. Bounded, since a small model may like blanks so much that it never comes to an end."""


def source_of(kind: str, text: str) -> str:
    """Raises ValueError with what is wrong."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"it has {len(text)} characters: at most {MAX_CHARS} are taken")
    if kind not in SOURCES:
        raise ValueError(f"the kinds are {', '.join(SOURCES)}")
    try:
        return SOURCES[kind](text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_schema(text: str) -> str:
    from llguidance import LLMatcher

    if json.loads(text) is True:
        text = "{}"
    return LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": WHITESPACE})


def regex(text: str) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(text)


def ebnf(text: str) -> str:
    """Both spellings that are in use: GBNF (`root ::= "a"`) and Lark (`start: "a"`)."""
    from llguidance import grammar_from

    return grammar_from("ebnf", text)


def structural_tag(text: str) -> str:
    """Free text in which each trigger begins a tag whose content has to fit its schema.

    {"structures": [{"begin": "<f=a>", "schema": {...}, "end": "</f>"}], "triggers": ["<f="]}
    """
    from llguidance import LLMatcher, StructTag

    given = json.loads(text)
    structures, triggers = listed(given, "structures"), listed(given, "triggers")
    tags = [tag_of(structure, triggers) for structure in structures]
    return LLMatcher.grammar_from_lark(StructTag.to_grammar([StructTag(**tag) for tag in tags], assume_special=False))


def listed(given: Any, name: str) -> list[Any]:
    values = given.get(name) if isinstance(given, dict) else None
    if not isinstance(values, list) or not values:
        raise ValueError(f"{name} must be a list, not empty")
    return values


def tag_of(structure: Any, triggers: list[Any]) -> dict[str, Any]:
    if not isinstance(structure, dict):
        raise ValueError("a structure must be an object")
    begin, end, schema = structure.get("begin"), structure.get("end", ""), structure.get("schema", {})
    if not isinstance(begin, str) or not isinstance(end, str) or not isinstance(schema, dict):
        raise ValueError("a structure has a begin and an end, which are strings, and a schema, which is an object")
    for trigger in triggers:
        if isinstance(trigger, str) and trigger and begin.startswith(trigger):
            return {"trigger": trigger, "begin": begin, "grammar": schema, "end": end}
    raise ValueError(f"no trigger begins {begin[:60]!r}")


SOURCES = {"json_schema": json_schema, "regex": regex, "ebnf": ebnf, "structural_tag": structural_tag}
