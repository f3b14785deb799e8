"""Write every generated file from its source; with --check, only say which are stale (`make docs`, `make check`)."""

from __future__ import annotations

import dataclasses
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import generate_wire
import generate_wire_rust
import orjson

from zerokl.cli import sglang_launch
from zerokl.config import ENVIRONMENT, options
from zerokl.server import documents, reference
from zerokl.server.routes import ROUTES

ROOT = Path(__file__).resolve().parent.parent


def wire_messages() -> str:
    schema = tomllib.loads(generate_wire.SCHEMA.read_text(encoding="utf-8"))
    return generate_wire.formatted(generate_wire.generate(schema))


def wire_messages_rust() -> str:
    schema = tomllib.loads(generate_wire.SCHEMA.read_text(encoding="utf-8"))
    return generate_wire_rust.formatted(generate_wire_rust.generate(schema))


def routes_json() -> str:
    """The route table for the Rust frontend, one route a line."""
    rows = [
        {"path": route.path, "methods": route.methods, "access": route.access.value, "handler": route.handler.__name__}
        for route in ROUTES
    ]
    return "[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n"


def openapi_json() -> str:
    return orjson.dumps(documents.document()).decode()


def options_page() -> str:
    lines = [
        "# Options",
        "",
        "The flags of `zerokl serve`; `LLM(...)` takes the same names with underscores. Made from",
        "`src/zerokl/config.py` by `make docs`. **bits**: can move an output bit, so it is part of the fingerprint.",
        "",
        "| flag | default | bits | what it does |",
        "|---|---|---|---|",
    ]
    variables = ["", "## Environment variables", "", "| name | what it does |", "|---|---|"]
    variables += [f"| `{name}` | {about} |" for name, about in ENVIRONMENT.items()]
    return "\n".join([*lines, *map(option_line, options()), *variables]) + "\n"


def option_line(field: dataclasses.Field[Any]) -> str:
    names = " ".join(f"`{name}`" for name in (f"--{field.name.replace('_', '-')}", *field.metadata["aliases"]))
    default = "" if field.default in (None, "", (), False) else f"`{field.default}`"
    choices = field.metadata["choices"]
    about = field.metadata["help"] + (f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else "")
    return f"| {names} | {default} | {'**bits**' if field.metadata['bits'] else ''} | {about} |"


MODELS = ROOT / "docs" / "models.json"
BEGIN, END = "<!-- from docs/models.json, by make docs -->", "<!-- end -->"


def models_page() -> str:
    """docs/models.md with the table of tools/model_table.py's results between its two marks."""
    before, rest = (ROOT / "docs" / "models.md").read_text(encoding="utf-8").split(BEGIN)
    lines = [
        "| architecture | format | error, in times of transformers' | values compared | differing |",
        "|---|---|---|---|---|",
    ]
    for row in json.loads(MODELS.read_text()):
        unequal = f", {len(row['not equal'])} cases could not run" if row["not equal"] else ""
        cells = [row["architecture"], row["format"], row["error"], f"{row['values']:,}", f"{row['differing']}{unequal}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return before + "\n".join([BEGIN, *lines, END]) + rest.split(END)[1]


GENERATED: dict[str, Callable[[], str]] = {
    "src/zerokl/wire/messages.py": wire_messages,
    "docs/models.md": models_page,
    "crates/zerokl-wire/src/messages.rs": wire_messages_rust,
    "crates/zerokl-http/data/routes.json": routes_json,
    "crates/zerokl-http/data/openapi.json": openapi_json,
    "docs/options.md": options_page,
    "docs/http-api.md": reference.page,
    "docs/sglang-flags.md": sglang_launch.document,
}


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for name, make in GENERATED.items():
        path, text = ROOT / name, make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{'stale: ' if check else 'written: '}{', '.join(stale)}{' (run `make docs`)' if check else ''}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
