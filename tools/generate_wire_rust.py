"""The Rust side of src/zerokl/wire/schema.toml: structs that read and write themselves as msgpack arrays.

`tools/generate.py` writes it to crates/zerokl-wire/src/messages.rs; what a field's type does is in codec.rs.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

SCALARS = {"bool": "bool", "u32": "u32", "u64": "u64", "i64": "i64", "f64": "f64", "str": "String"}

HEAD = """//! Messages between a frontend and the engine. Written by tools/generate_wire_rust.py: change schema.toml.
//!
//! Each is a msgpack array in field order; `Span` is a raw column after the header, see `frames.rs`.

use crate::codec::{Fields, Reader, Wire, WireError, Writer};
"""

SPAN: dict[str, Any] = {
    "name": "Span",
    "doc": "A column's place in the bytes after the header.",
    "fields": [
        {"name": "offset", "type": "u32", "default": 0},
        {"name": "size", "type": "u32", "default": 0},
    ],
}


def generate(schema: dict[str, Any]) -> str:
    """The Rust source of all structs and messages, not yet formatted."""
    out = [HEAD]
    out.append(f"pub const PROTOCOL: u32 = {schema['protocol']};\n")
    for name in ("max_to_engine_bytes", "max_to_frontend_bytes"):
        out.append(f"pub const {name.upper()}: usize = {schema[name]};\n")
    for entry in [SPAN, *schema["struct"], *schema["message"]]:
        out += [struct_source(entry), default_source(entry), wire_source(entry)]
    out.append(union_source("ToEngine", "engine", schema))
    out.append(union_source("ToFrontend", "frontend", schema))
    return "\n".join(out)


def struct_source(entry: dict[str, Any]) -> str:
    derived = ["Debug", "Clone", "PartialEq"]
    derived += ["Copy"] if entry is SPAN else []
    derived += ["Default"] if is_zero(entry) else []
    lines = [f"/// {entry['doc']}", f"#[derive({', '.join(derived)})]", f"pub struct {entry['name']} {{"]
    for spec in entry["fields"]:
        lines += [f"/// {spec['doc']}"] if "doc" in spec else []
        lines.append(f"pub {spec['name']}: {rust_type(spec)},")
    return "\n".join([*lines, "}"]) + "\n"


def default_source(entry: dict[str, Any]) -> str:
    """Where every field has a default, so has the struct."""
    if is_zero(entry) or not all(has_default(spec) for spec in entry["fields"]):
        return ""
    values = "\n".join(f"{spec['name']}: {default_value(spec)}," for spec in entry["fields"])
    return f"impl Default for {entry['name']} {{ fn default() -> Self {{ Self {{ {values} }} }} }}\n"


def is_zero(entry: dict[str, Any]) -> bool:
    """Whether each default is what Rust takes by itself."""
    return all(spec.get("optional") or spec.get("default") in (0, [], False, "") for spec in entry["fields"])


def wire_source(entry: dict[str, Any]) -> str:
    fields = entry["fields"]
    written = "\n".join(f"self.{spec['name']}.write(out);" for spec in fields)
    read = "\n".join(f"{spec['name']}: {read_source(spec)}," for spec in fields)
    return f"""impl Wire for {entry["name"]} {{
        fn write(&self, out: &mut Writer) {{ out.array({len(fields)}); {written} }}
        fn read(input: &mut Reader) -> Result<Self, WireError> {{
            let mut fields = Fields::of(input)?;
            let value = Self {{ {read} }};
            fields.skip_tail()?;
            Ok(value)
        }}
    }}
    """


def read_source(spec: dict[str, Any]) -> str:
    return f"fields.or({default_value(spec)})?" if has_default(spec) else "fields.required()?"


def union_source(name: str, side: str, schema: dict[str, Any]) -> str:
    """An enum of the messages towards one side, by kind."""
    messages = [message for message in schema["message"] if message["to"] == side]
    variants = "\n".join(f"{m['name']}({m['name']})," for m in messages)
    known = kinds_pattern([m["kind"] for m in messages])
    reads = "\n".join(f"{m['kind']} => Self::{m['name']}(Wire::read(input)?)," for m in messages)
    kinds = "\n".join(f"Self::{m['name']}(_) => {m['kind']}," for m in messages)
    writes = "\n".join(f"Self::{m['name']}(message) => message.write(out)," for m in messages)
    return f"""/// What is sent to the {side}.
    #[derive(Debug, Clone, PartialEq)]
    #[allow(clippy::large_enum_variant)] // made once per message, and moved little
    pub enum {name} {{ {variants} }}

    impl {name} {{
        pub const LIMIT_BYTES: usize = MAX_TO_{side.upper()}_BYTES;

        pub fn knows(kind: u8) -> bool {{ matches!(kind, {known}) }}

        pub fn kind(&self) -> u8 {{ match self {{ {kinds} }} }}

        pub fn write(&self, out: &mut Writer) {{ match self {{ {writes} }} }}

        /// The message of a kind that `knows` knows.
        pub fn read(kind: u8, input: &mut Reader) -> Result<Self, WireError> {{
            Ok(match kind {{ {reads} other => return Err(WireError::unknown_kind(other)) }})
        }}
    }}
    """


def kinds_pattern(kinds: list[int]) -> str:
    """A range where there is no gap."""
    together = kinds == list(range(kinds[0], kinds[-1] + 1))
    return f"{kinds[0]}..={kinds[-1]}" if together else " | ".join(map(str, kinds))


def rust_type(spec: dict[str, Any]) -> str:
    kind = plain_type(spec["type"])
    return f"Option<{kind}>" if spec.get("optional", False) else kind


def plain_type(kind: str) -> str:
    outer, _, inner = kind.removesuffix(">").partition("<")
    if outer == "span":
        return "Span"
    if outer == "list":
        return f"Vec<{plain_type(inner)}>"
    return SCALARS.get(kind, kind)


def has_default(spec: dict[str, Any]) -> bool:
    return spec.get("optional", False) or "default" in spec


def default_value(spec: dict[str, Any]) -> str:
    if spec.get("optional", False):
        return "None"
    value = spec["default"]
    if value == []:
        return "Vec::new()"
    if isinstance(value, bool):
        return str(value).lower()
    return f'String::from("{value}")' if isinstance(value, str) else str(value)


def formatted(source: str) -> str:
    """As `cargo fmt` leaves it."""
    rustfmt = shutil.which("rustfmt") or "rustfmt"
    command = [rustfmt, "--edition", "2024", "--config", "max_width=120,use_small_heuristics=Max"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
