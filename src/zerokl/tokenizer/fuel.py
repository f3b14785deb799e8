"""A budget for templates: steps and characters, not seconds, so the same template is refused on every machine.

Jinja's sandbox keeps a template from Python's insides but lets it loop and grow for ever. Here every loop round, call,
operator, filter and output pays, and what could make a huge value in one go pays before it is done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import wraps
from typing import Any

MAX_STEPS = 2_000_000
"""Of a render; a chat of 1,000 messages under a template that looks at all of them for each needs half of it."""
MAX_CHARACTERS = 256 * 2**20
"""Made by one render, intermediate values included: four times the largest request body."""
CALL_STEPS, MACRO_STEPS = 4, 20
"""What a call or filter and a macro cost: a step is a loop round, about half a microsecond."""
MAX_WIDTH = 10_000
"""For padding, indents and precisions."""
MAX_INTEGER_BITS = 4096

# fmt: off
PADDING = frozenset({
    "batch", "center", "expandtabs", "indent", "ljust", "pprint", "rjust", "round", "slice", "to_bytes", "tojson",
    "truncate", "wordwrap", "zfill",
})
SHALLOW = frozenset({
    "abs", "attr", "batch", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "last",
    "length", "list", "map", "max", "min", "random", "reject", "rejectattr", "reverse", "round", "select", "selectattr",
    "slice", "sort", "unique",
})
# fmt: on
"""Filters that look at a container's items but don't spell them out; all others pay for the whole value's text."""
WIDE_FORMAT = re.compile(r"[0-9]{5,}|\*")


class FuelError(Exception):
    """The template asked for more than a render may cost."""


class Fuel:
    """What is left of one render's budget."""

    def __init__(self) -> None:
        self.steps, self.characters = MAX_STEPS, MAX_CHARACTERS

    def burn(self, steps: int = 1, characters: int = 0) -> None:
        self.steps -= steps
        self.characters -= characters
        if self.steps < 0:
            raise FuelError(f"more than {MAX_STEPS} steps")
        if self.characters < 0:
            raise FuelError(f"more than {MAX_CHARACTERS} characters")


FUEL: ContextVar[Fuel] = ContextVar("template fuel")


def pay_for(value: Any) -> Any:
    """Charge a made value by its own size, not its items', and return it."""
    FUEL.get().burn(1 + _items(value), len(value) if isinstance(value, str) else 0)
    return value


def pay_for_text(value: Any, times: int = 1) -> int:
    """Charge `times` the length of the value's text, before the text is made; return the length.

    Walks containers as `str` or `json.dumps` would, so a list that holds itself many times over pays for each time.
    """
    fuel, total, waiting = FUEL.get(), 0, [value]
    while waiting:
        item = waiting.pop()
        size = len(item) if isinstance(item, str | bytes) else 8
        fuel.burn(1, size * times)
        total += size
        if isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            waiting.extend(item)
        elif isinstance(item, range):
            fuel.burn(len(item), 8 * len(item) * times)
    return total


def pay_per_item(values: Any, separator: int = 0) -> Any:
    """An iterator that charges each item's text, and a separator's, as it passes; other values as they are."""
    return _paying(values, separator) if isinstance(values, Iterator) else values


def check_call(name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a filter or method `name` runs on `value`: charge it, refuse what would be huge at once."""
    given = (*args, *kwargs.values())
    FUEL.get().burn(CALL_STEPS + _items(value) + sum(map(_items, given)))
    width = max((abs(arg) for arg in given if isinstance(arg, int)), default=0)
    if name in PADDING:
        if width > MAX_WIDTH:
            raise FuelError(f"{name} with a width over {MAX_WIDTH}")
        FUEL.get().burn(0, width * (1 + _separators(value)))
    if name == "format":
        check_format(value, given)
    elif name in ("join", "sum"):
        pay_for_text((value, given))
        FUEL.get().burn(0, separator_of(value, given) * (_items(value) + sum(map(_items, given))))
    elif name in ("replace", "translate") and isinstance(value, str):
        pay_for_text(given, times=_matches(name, value, given))


def separator_of(value: Any, given: tuple[Any, ...]) -> int:
    """Length of what `join` puts between: of the text that joins (a method's own, a filter's argument)."""
    return sum(len(text) for text in (value, *given) if isinstance(text, str))


def check_format(template: Any, given: Any) -> None:
    """Refuse huge widths; charge every place that a value may be put in."""
    if isinstance(template, str):
        if WIDE_FORMAT.search(template):
            raise FuelError("a format with a huge width")
        pay_for_text(given, times=1 + template.count("%") + template.count("{"))


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Before an operation whose result may be huge."""
    if operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple | bytes) and isinstance(times, int):
                size = len(value) * max(times, 0)
                FUEL.get().burn(size // (64 if isinstance(value, str | bytes) else 1), size)
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * max(right, 0))
    elif operator == "%" and isinstance(left, str):
        check_format(left, right)


def paid_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, with its arguments and result charged. Keeps Jinja's marks on it (what it wants passed first)."""
    passed_first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def paid(*args: Any, **kwargs: Any) -> Any:
        separator = separator_of(None, args[passed_first:]) if name == "join" else 0
        own = [pay_per_item(arg, separator) for arg in args[passed_first:]]
        value = own[0] if own else None
        check_call(name, value, tuple(own[1:]), kwargs)
        if name not in SHALLOW:
            pay_for_text(value)
        return pay_for(function(*args[:passed_first], *own, **kwargs))

    return paid


def _paying(values: Iterator[Any], separator: int) -> Iterator[Any]:
    for value in values:
        pay_for_text(value)
        FUEL.get().burn(0, separator)
        yield value


def _items(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple | dict | range | set | frozenset) else 0


def _separators(value: Any) -> int:
    """Places where an indent or a tab may be put in."""
    return value.count("\n") + value.count("\t") if isinstance(value, str) else _items(value)


def _matches(name: str, value: str, given: tuple[Any, ...]) -> int:
    """How often a replacement may be put in."""
    if name == "replace" and given and isinstance(given[0], str) and given[0]:
        return value.count(given[0])
    return len(value) + 1


def _check_bits(bits: int) -> None:
    if bits > MAX_INTEGER_BITS:
        raise FuelError(f"an integer of more than {MAX_INTEGER_BITS} bits")
