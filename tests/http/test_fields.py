"""The field table: whole, in use, and in agreement with itself and the docs."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import orjson
import pytest

from zerokl.server import validate
from zerokl.server.documents import document
from zerokl.server.fields import shown, table
from zerokl.server.reference import page
from zerokl.server.routes import ROUTES

DOCUMENT = orjson.loads(files("zerokl.server").joinpath("fields.json").read_bytes())
TABLES = [name for name in DOCUMENT if name not in ("about", "messages")]


@pytest.mark.parametrize("name", TABLES)
def test_each_field_is_explained_and_its_default_is_valid(name: str) -> None:
    for field in table(name):
        assert field.help
        assert field.expected
        assert field.type in validate._TYPES
        if field.default not in (None, [], {}):
            assert validate._one(field, field.default, field.name) == field.default


@pytest.mark.parametrize("name", TABLES)
def test_the_words_name_the_bounds(name: str) -> None:
    for field in table(name):
        numbers = re.findall(r"-?\d+", field.expected)
        for bound in (field.min, field.max, field.above):
            if bound is not None and abs(bound) < 2**31 - 1:
                assert str(bound) in numbers, f"{field.name}: {field.expected!r} doesn't say {bound}"


def test_every_message_is_used_and_every_used_message_is_there() -> None:
    sources = Path(str(files("zerokl.server"))).rglob("*.py")
    text = "".join(source.read_text() for source in sources)
    used = set(re.findall(r'message\(\s*"([a-z_]+)"', text))
    assert used <= set(DOCUMENT["messages"])
    for key in DOCUMENT["messages"]:
        assert f'"{key}"' in text, f"nothing uses the message {key}"


def test_no_field_stands_twice_in_a_table() -> None:
    for name in TABLES:
        names = [field.name for field in table(name)]
        assert len(names) == len(set(names))


def test_values_are_shown_as_compact_json() -> None:
    assert shown({"a": [1, "ü", None, 0.1]}) == '{"a":[1,"ü",null,0.1]}'
    assert len(shown("x" * 100)) == 60


def test_the_openapi_document_has_every_route_and_field() -> None:
    paths = document()["paths"]
    assert set(paths) == {route.path for route in ROUTES}
    schema = paths["/generate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert list(schema["properties"]) == [field.name for field in table("generate")]


def test_the_reference_page_is_the_tables() -> None:
    text = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")
    assert text == page(), "run `make docs`"
    assert all(f"`{route.path}`" in text for route in ROUTES)
