"""Read a test file's registrations from its source, without importing it. What can't be read for sure is an error.

A value that is computed, a call inside an `if`, a call through a module: each could silently mean "not given" to a
reader of the source, that is an enabled test which somebody disabled. So none of them passes.
"""

from __future__ import annotations

import ast
import datetime
import difflib
import math
import re
from dataclasses import dataclass
from pathlib import Path

from zerokl.errors import ConfigError

BACKENDS = ("cpu", "cuda")
CALL = re.compile(r"register_(\w+)_ci")
DISABLED = re.compile(r"(\d{4}-\d\d-\d\d): *(\S.*)")
TYPES: dict[str, tuple[type, ...]] = {
    "est_time": (int, float),
    "stage": (str,),
    "runner_config": (str,),
    "nightly": (bool,),
    "disabled": (str, type(None)),
}
REQUIRED = ("est_time", "stage", "runner_config")


@dataclass(frozen=True, slots=True)
class Registration:
    """One call. `file` is where the tests are, relative to the project; `source` where the call stands."""

    file: str
    backend: str
    est_time: float
    stage: str
    runner_config: str
    nightly: bool = False
    disabled: str | None = None
    source: str = ""

    @property
    def suite(self) -> str:
        return f"{self.stage}-test-{self.runner_config}"


def read(path: Path, name: str) -> list[Registration]:
    """The registrations in one file's source, `name` in messages; raises ConfigError that lists every mistake."""
    try:
        tree = ast.parse(path.read_text("utf-8"), name)
    except SyntaxError as error:
        raise ConfigError(f"{name}:{error.lineno}: not Python: {error.msg}") from None
    found, mistakes = [], _renamed(tree, name)
    plain = {id(line.value) for line in tree.body if isinstance(line, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (match := CALL.fullmatch(_called(node))):
            try:
                if id(node) not in plain or not isinstance(node.func, ast.Name):
                    raise ConfigError("the call must stand alone, by its bare name, at the top level of the file")
                found.append(_registration(node, match[1], name))
            except ConfigError as error:
                mistakes.append(f"{name}:{node.lineno}: {error}")
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return found


def disabled_on(text: str) -> datetime.date:
    """The date at the head of `disabled`; raises ConfigError unless a date and a reason are there."""
    match = DISABLED.fullmatch(text)
    if not match:
        raise ConfigError(f'disabled must be "YYYY-MM-DD: reason", not {text!r}')
    try:
        return datetime.date.fromisoformat(match[1])
    except ValueError:
        raise ConfigError(f"disabled: {match[1]} is not a date") from None


def _registration(call: ast.Call, backend: str, file: str) -> Registration:
    if backend not in BACKENDS:
        raise ConfigError(f"no backend {backend!r}{nearest(backend, BACKENDS)}")
    values = _values(call)
    if missing := [name for name in REQUIRED if name not in values]:
        raise ConfigError(f"{', '.join(missing)} must be given")
    for name, value in values.items():
        if not isinstance(value, TYPES[name]) or (isinstance(value, bool) and bool not in TYPES[name]):
            raise ConfigError(f"{name} can't be {value!r}")
    if not (0 < values["est_time"] < math.inf):  # type: ignore[operator]  # checked just above
        raise ConfigError(f"est_time must be a positive number of seconds, not {values['est_time']!r}")
    if isinstance(disabled := values.get("disabled"), str):
        disabled_on(disabled)
    return Registration(file=file, backend=backend, source=f"{file}:{call.lineno}", **values)  # type: ignore[arg-type]


def _values(call: ast.Call) -> dict[str, object]:
    """Arguments by name; est_time may come first without its name."""
    if len(call.args) > 1 or any(isinstance(argument, ast.Starred) for argument in call.args):
        raise ConfigError("only est_time may stand without its name")
    pairs: list[tuple[str | None, ast.expr]] = [("est_time", argument) for argument in call.args]
    values: dict[str, object] = {}
    for name, node in [*pairs, *((keyword.arg, keyword.value) for keyword in call.keywords)]:
        if name is None:
            raise ConfigError("** hides what is registered: give each argument by name")
        if name not in TYPES:
            raise ConfigError(f"no argument {name!r}{nearest(name, TYPES)}")
        if name in values:
            raise ConfigError(f"{name} is given twice")
        if not isinstance(node, ast.Constant):
            raise ConfigError(f"{name} must be a constant, not `{ast.unparse(node)}`: it is read without running it")
        values[name] = node.value
    return values


def _renamed(tree: ast.Module, file: str) -> list[str]:
    """An import under another name would hide the call from the reader."""
    return [
        f"{file}:{node.lineno}: {alias.name} must keep its name, not become {alias.asname}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if CALL.fullmatch(alias.name) and alias.asname not in (None, alias.name)
    ]


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Name):
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def nearest(name: str, known: object) -> str:
    """ "; the nearest is ..." for a message, or the whole list where nothing is near."""
    names = [str(one) for one in known]  # type: ignore[attr-defined]  # any iterable of names
    near = difflib.get_close_matches(name, names, n=1)
    return (
        f"; the nearest is {near[0]!r}"
        if near
        else f"; there are {', '.join(names[:12]) or 'none'}{', ...' if len(names) > 12 else ''}"
    )
