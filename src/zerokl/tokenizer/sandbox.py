"""Jinja as Hugging Face's templates expect it, in a sandbox where everything pays.

Settings are part of the contract, because templates rely on them: trim_blocks, lstrip_blocks, loop controls,
`raise_exception`, `strftime_now`, `tojson` without HTML escapes, and `{% generation %}` as a bare block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from zerokl.errors import CheckpointError, InvalidRequest
from zerokl.tokenizer.fuel import (
    FUEL,
    MACRO_STEPS,
    Fuel,
    FuelError,
    check_call,
    check_operator,
    paid_filter,
    pay_for,
    pay_for_text,
    pay_per_item,
    separator_of,
)

MAX_TEMPLATE_CHARACTERS = 2**20
TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    FuelError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template's own code may raise: it is a program, and its faults are the request's or the template's."""


def compile_template(source: str) -> jinja2.Template:
    """Raises CheckpointError that names the line."""
    if len(source) > MAX_TEMPLATE_CHARACTERS:
        raise CheckpointError(f"the chat template has {len(source)} characters; the limit is {MAX_TEMPLATE_CHARACTERS}")
    environment = _environment()
    try:
        tree = environment.parse(source)
        _make_pay(tree)
        return jinja2.Template.from_code(environment, environment.compile(tree), environment.make_globals(None))
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(f"the chat template, line {error.lineno}: {error.message}") from error
    except (SyntaxError, *TEMPLATE_FAILURES) as error:
        raise CheckpointError(f"the chat template can't be compiled: {error}") from error


def render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """The text; InvalidRequest if the template fails, refuses, or runs out of fuel."""
    token = FUEL.set(Fuel())
    try:
        return template.render(variables)
    except FuelError as error:
        raise InvalidRequest(f"the chat template is too expensive: {error}") from error
    except TEMPLATE_FAILURES as error:
        raise InvalidRequest(f"the chat template failed: {error or type(error).__name__}") from error
    finally:
        FUEL.reset(token)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox in which everything that takes time or room pays from the render's fuel."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", Generation],
            finalize=_finalize,
        )
        self.filters["tojson"] = _tojson
        self.filters = {name: paid_filter(name, function) for name, function in self.filters.items()}
        del self.globals["lipsum"]
        self.globals["range"] = lambda *args: pay_for(range(*args))
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: datetime.now().strftime(format)

    def pay_run(self, steps: int, characters: int) -> None:
        """Called by each round of a loop and each call of a macro, with the length of the literal text in it."""
        FUEL.get().burn(steps, characters)

    def joined(self, *parts: Any) -> str:
        """The `~` operator."""
        pay_for_text(parts)
        return "".join(map(str, parts))

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        if function in (self.pay_run, self.joined):
            return function(*args)
        method = getattr(function, "__wrapped__", function)  # str.format comes wrapped by the sandbox
        name, value = getattr(method, "__name__", ""), getattr(method, "__self__", None)
        args = tuple(pay_per_item(arg, separator_of(value, ())) for arg in args)
        check_call(name, value, args, kwargs)
        return pay_for(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        check_operator(operator, left, right)
        return pay_for(super().call_binop(context, operator, left, right))


class Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here its body just stands."""

    tags = {"generation"}  # noqa: RUF012 - declared so by Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@cache
def _environment() -> TemplateEnvironment:
    return TemplateEnvironment()


def _make_pay(node: nodes.Node) -> None:
    """Make loops and macros pay for each run, and `~` for its result: Jinja has no hook for these."""
    for child in node.iter_child_nodes():
        _make_pay(child)
    if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
        steps = 1 if isinstance(node, nodes.For) else MACRO_STEPS
        characters = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        pay = _call("pay_run", [nodes.Const(steps), nodes.Const(characters)], node.lineno)
        node.body.insert(0, nodes.ExprStmt(pay, lineno=node.lineno))
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Concat):
            setattr(node, field, _call("joined", value.nodes, value.lineno))
        elif isinstance(value, list):
            value[:] = [_call("joined", v.nodes, v.lineno) if isinstance(v, nodes.Concat) else v for v in value]


def _call(method: str, args: list[nodes.Expr], line: int) -> nodes.Call:
    function = nodes.EnvironmentAttribute(method, lineno=line)
    return nodes.Call(function, args, [], None, None, lineno=line)


@jinja2.pass_context
def _finalize(_context: Any, value: Any) -> Any:
    """Each `{{ output }}` pays. It takes the context so that Jinja doesn't run it while compiling."""
    pay_for_text(value)
    return value


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
