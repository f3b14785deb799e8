"""From request bytes to checked values: JSON, depth, then the field table. One validator, written by hand.

Libraries differ in what they coerce ("2", true, 1.0) and in their words; this file and `fields.json` are the rule:
an integer is a JSON integer or a number without fraction, a float any number, a bool only true or false; null means
"not given". The first bad field in table order is the one reported.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from typing import Any

import orjson

from zerokl._native import json_fault
from zerokl.errors import InvalidRequest
from zerokl.server.fields import Field, message, nearest, shown, table

MAX_DEPTH = 100
"""Checked before the parsers' own limits, which differ (128 in serde_json, 1024 in orjson)."""
MAX_VALUES = 1 << 21
"""In lists and objects: 4,096 prompts of 512 ids. What 64 MB of ids become would hold the event loop for seconds: the
parser and the checks of a list never let go of the interpreter."""
PIECE = 1 << 20

Values = dict[str, Any]


def parse_object(body: bytes) -> Values:
    """The body as one JSON object, whatever its content type. Raises InvalidRequest."""
    if len(body) > MAX_VALUES and commas_of(body) >= MAX_VALUES:
        raise InvalidRequest(message("too_many", limit=MAX_VALUES))
    if depth_of(body) > MAX_DEPTH:
        raise InvalidRequest(message("too_deep", limit=MAX_DEPTH))
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(message("not_json", why=json_fault(body) or error)) from None
    if not isinstance(document, dict):
        raise InvalidRequest(message("not_object", value=shown(document)))
    return document


def check(table_name: str, body: Values, prefix: str = "", strict: bool = False) -> Values:
    """Each field of the table with its checked value or default. `strict`: a key outside the table is an error."""
    defaults, places, required = plan_of(table_name)
    values = defaults.copy()
    present = [places[key] for key in body if key in places]
    if strict and len(present) < len(body):
        _refuse_unknown(places, body, prefix)
    if required and not required.issubset(body):
        present = [*{*present, *(places[key] for key in required)}]
    present.sort()
    fields = table(table_name)
    for place in present:  # a body names few of the table's fields
        field = fields[place]
        values[field.name] = _checked(field, body.get(field.name), field.name in body, prefix)
    return values


@functools.cache
def plan_of(table_name: str) -> tuple[Values, dict[str, int], frozenset[str]]:
    """(each field's default, its place in the table, those that must be there)"""
    fields = table(table_name)
    places = {field.name: place for place, field in enumerate(fields)}
    return {field.name: field.default for field in fields}, places, frozenset(f.name for f in fields if f.required)


def check_sampling(body: Any, prefix: str) -> Values:
    """One `sampling_params` object; unlike bodies, it takes no unknown key."""
    return check("sampling_params", body, prefix + ".", strict=True)


def bad_value(name: str, expected: str, value: Any) -> InvalidRequest:
    return InvalidRequest(message("bad_value", name=name, expected=expected, value=shown(value)), param=name)


def _refuse_unknown(places: dict[str, int], body: Values, prefix: str) -> None:
    known = list(places)
    for key in body:
        if key not in known:
            name, close = prefix.rstrip("."), nearest(key, known)
            text = (
                message("unknown_key_nearest", key=shown(key), name=name, nearest=shown(close))
                if close
                else message("unknown_key", key=shown(key), name=name)
            )
            raise InvalidRequest(text, param=prefix + key)


def _checked(field: Field, value: Any, given: bool, prefix: str) -> Any:
    name = prefix + field.name
    if value is None:
        if field.null_is_given and given:
            return None
        if field.required:
            raise bad_value(name, field.expected, None)
        return field.default
    if field.per_prompt and isinstance(value, list):
        return [_one(field, item, f"{name}[{i}]") for i, item in enumerate(value)]
    return _one(field, value, name)


def _one(field: Field, value: Any, name: str) -> Any:
    if field.fields and field.type == "object" and isinstance(value, dict):
        return check(field.fields, value, name + ".")
    good, converted = _TYPES[field.type](field, value)
    if not good:
        key = "unset_only" if field.type in ("unset", "null") else "bad_value"
        text = message(key, name=name, expected=field.expected, value=shown(value))
        raise InvalidRequest(text, param=name, code="unsupported_value" if key == "unset_only" else None)
    return converted


Verdict = tuple[bool, Any]


def _bool(field: Field, value: Any) -> Verdict:
    return type(value) is bool, value


def _int(field: Field, value: Any) -> Verdict:
    if type(value) is float and value.is_integer():
        value = int(value)
    return type(value) is int and _in_range(field, value) and value != field.excluded, value


def _float(field: Field, value: Any) -> Verdict:
    return type(value) in (int, float) and _in_range(field, value), float(value) if _is_number(value) else value


def _str(field: Field, value: Any) -> Verdict:
    return isinstance(value, str) and (not field.choices or value in field.choices), value


def _text_or_list(field: Field, value: Any) -> Verdict:
    return isinstance(value, str) or _all(value, str), value


def _text_or_object(field: Field, value: Any) -> Verdict:
    return isinstance(value, str | dict), value


def _object(field: Field, value: Any) -> Verdict:
    return isinstance(value, dict), value


def _object_or_list(field: Field, value: Any) -> Verdict:
    return isinstance(value, dict) or _all(value, dict), value


def _list(field: Field, value: Any) -> Verdict:
    return isinstance(value, list) and bool(value), value


def _ids(field: Field, value: Any) -> Verdict:
    """Only the form; each id is checked against the vocabulary, with its position, in `prompts.check_ids`."""
    return isinstance(value, list), value


def _ids_or_list(field: Field, value: Any) -> Verdict:
    return isinstance(value, list) and (not any(isinstance(v, list) for v in value) or _all(value, list)), value


def _prompt(field: Field, value: Any) -> Verdict:
    return isinstance(value, str) or (_ids_or_list(field, value)[0] and _one_kind(value)), value


def _stops(field: Field, value: Any) -> Verdict:
    stops = [value] if isinstance(value, str) else value
    good = _all(stops, str) and all(stops) and (field.max_items is None or len(stops) <= field.max_items)
    return good, stops


def _id_numbers(field: Field, value: Any) -> Verdict:
    """{"17": -2.5} as ((17, -2.5), ...) in id order. The ids' range is checked against the vocabulary later."""
    if not isinstance(value, dict):
        return False, value
    good = all(_DIGITS.fullmatch(k) and _is_number(v) and _in_range(field, v) for k, v in value.items())
    return good, tuple(sorted((int(k), float(v)) for k, v in value.items())) if good else value


def _unset(field: Field, value: Any) -> Verdict:
    """ "" too: SGLang's cache-hit kit sends it for "no adapter"."""
    return value is False or value == "" or (_is_number(value) and value == 0), None


def _null(field: Field, value: Any) -> Verdict:
    return False, value


_TYPES: dict[str, Callable[[Field, Any], Verdict]] = {
    "bool": _bool,
    "int": _int,
    "float": _float,
    "str": _str,
    "text_or_list": _text_or_list,
    "text_or_object": _text_or_object,
    "object": _object,
    "object_or_list": _object_or_list,
    "list": _list,
    "ids": _ids,
    "ids_or_list": _ids_or_list,
    "prompt": _prompt,
    "stops": _stops,
    "id_numbers": _id_numbers,
    "unset": _unset,
    "null": _null,
}

_DIGITS = re.compile(r"0|[1-9][0-9]{0,9}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _in_range(field: Field, value: float) -> bool:
    return (
        (field.min is None or value >= field.min)
        and (field.max is None or value <= field.max)
        and (field.above is None or value > field.above)
    )


def _all(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _one_kind(values: list[Any]) -> bool:
    return len({isinstance(v, str) for v in values}) <= 1


_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_BRACKETS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))


def depth_of(body: bytes) -> int:
    """The deepest nesting of brackets outside strings; a body with few brackets is not scanned, it can't be deep."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return 0
    steps = memoryview(_STRINGS.sub(b"", body).translate(_BRACKETS, _NOT_BRACKETS)).cast("b")
    return max(itertools.accumulate(steps), default=0)


def commas_of(body: bytes) -> int:
    """Outside strings; those inside are told apart only if all together are too many. Others may run between pieces."""
    count = sum(body.count(b",", start, start + PIECE) for start in range(0, len(body), PIECE))
    return count if count < MAX_VALUES else _STRINGS.sub(b"", body).count(b",")
