"""Write src/zerokl/wire/messages.py from src/zerokl/wire/schema.toml; with --check, only say whether it is fresh.

The schema is plain enough for a second backend (Rust structs that serde reads as tuples): fields have a position, a
type out of a short list, and maybe a default.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "src" / "zerokl" / "wire" / "schema.toml"
MESSAGES = ROOT / "src" / "zerokl" / "wire" / "messages.py"

SCALARS = {"bool": "bool", "u32": "U32", "u64": "U64", "i64": "int", "f64": "float", "str": "str"}
COLUMNS = {"u8", "u32", "u64", "i32", "f32"}

HEAD = '''"""Messages between a frontend and the engine. Written by tools/generate_wire.py: change schema.toml.

Each is a msgpack array in field order; `Span` is a raw column after the header, see `wire/frames.py`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

U32 = Annotated[int, Meta(ge=0, le=4294967295)]
U64 = Annotated[int, Meta(ge=0)]
'''

SPAN = '''

class Span(Struct, frozen=True, array_like=True, gc=False):
    """A column's place in the bytes after the header."""

    offset: U32 = 0
    size: U32 = 0
'''


def generate(schema: dict[str, Any]) -> str:
    """The Python source of all structs and messages."""
    names = {entry["name"] for entry in schema["struct"] + schema["message"]}
    out = [HEAD, "\n"]
    for constant in ("protocol", "max_to_engine_bytes", "max_to_frontend_bytes"):
        out.append(f"{constant.upper()} = {schema[constant]}\n")
    out.append(SPAN)
    out.extend(struct_source(entry, names) for entry in schema["struct"])
    out.extend(struct_source(entry, names) for entry in schema["message"])
    out.append("\n\n" + union_source("ToEngine", "engine", schema))
    out.append("\n" + union_source("ToFrontend", "frontend", schema))
    out.append("\n" + kinds_source("TO_ENGINE", "engine", schema))
    out.append(kinds_source("TO_FRONTEND", "frontend", schema))
    out.append("KINDS: dict[type[Struct], int] = {\n")
    out.extend(f"    {message['name']}: {message['kind']},\n" for message in schema["message"])
    out.append("}\n")
    return "".join(out)


def struct_source(entry: dict[str, Any], names: set[str]) -> str:
    lines = [f"\n\nclass {entry['name']}(Struct, frozen=True, array_like=True, gc=False):"]
    lines.append(f'    """{entry["doc"]}"""\n')
    optional_seen = False
    for spec in entry["fields"]:
        optional = spec.get("optional", False)
        has_default = optional or "default" in spec
        if optional_seen and not has_default:
            raise SystemExit(f"{entry['name']}.{spec['name']}: a field without default after one with it")
        optional_seen = optional_seen or has_default
        kind = python_type(spec["type"], names) + (" | None" if optional else "")
        lines.append(f"    {spec['name']}: {kind}{default_source(spec)}")
        if "doc" in spec:
            lines.append(f'    """{spec["doc"]}"""')
    return "\n".join(lines) + "\n"


def python_type(kind: str, names: set[str]) -> str:
    if kind in SCALARS:
        return SCALARS[kind]
    if kind in names:
        return kind
    outer, _, inner = kind.removesuffix(">").partition("<")
    if outer == "list":
        return f"list[{python_type(inner, names)}]"
    if outer == "span" and inner in COLUMNS:
        return "Span"
    raise SystemExit(f"schema.toml: unknown type {kind}")


def default_source(spec: dict[str, Any]) -> str:
    if spec.get("optional", False):
        return " = None"
    if "default" not in spec:
        return ""
    if spec["default"] == []:
        return " = field(default_factory=list)"
    if isinstance(spec["default"], str):
        return ' = "' + spec["default"].replace('"', '\\"') + '"'
    return f" = {spec['default']!r}"


def union_source(name: str, side: str, schema: dict[str, Any]) -> str:
    return f"{name} = " + " | ".join(m["name"] for m in schema["message"] if m["to"] == side)


def kinds_source(name: str, side: str, schema: dict[str, Any]) -> str:
    lines = [f"{name}: dict[int, type[{side_union(side)}]] = {{"]
    lines += [f"    {m['kind']}: {m['name']}," for m in schema["message"] if m["to"] == side]
    return "\n".join(lines) + "\n}\n"


def side_union(side: str) -> str:
    return "ToEngine" if side == "engine" else "ToFrontend"


def formatted(source: str) -> str:
    """As `ruff format` leaves it, so that `make check` and this file agree."""
    ruff = Path(sys.executable).with_name("ruff")
    return subprocess.run(
        [str(ruff), "format", "--stdin-filename", "messages.py", "-"],
        input=source,
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout


def main() -> int:
    source = formatted(generate(tomllib.loads(SCHEMA.read_text(encoding="utf-8"))))
    if "--check" in sys.argv[1:]:
        fresh = MESSAGES.exists() and MESSAGES.read_text(encoding="utf-8") == source
        print("wire/messages.py is fresh" if fresh else "wire/messages.py is stale: run tools/generate_wire.py")
        return 0 if fresh else 1
    MESSAGES.write_text(source, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
