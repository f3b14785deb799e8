"""A budget for templates: steps and characters, not seconds, so the same template is refused on every machine.

Jinja's sandbox keeps a template from Python's insides but lets it loop and grow for ever. Here every loop round, call,
operator, filter and output pays, and what could make a huge value in one go is refused beforehand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

MAX_STEPS = 2_000_000
"""Of a render; a chat of 1,000 messages under a template that looks at all of them for each needs half of it."""
MAX_CHARACTERS = 256 * 2**20
"""Made by one render, intermediate values included: four times the largest request body."""
MAX_WIDTH = 10_000
"""For padding, indents and precisions."""
# fmt: off
PADDING = frozenset({
    "batch", "center", "expandtabs", "format", "indent", "ljust", "pprint", "rjust", "round", "slice", "to_bytes",
    "tojson", "truncate", "wordwrap", "zfill",
})
# fmt: on
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
            raise FuelError(f"more than {MAX_CHARACTERS} characters made")


FUEL: ContextVar[Fuel] = ContextVar("template fuel")


def pay_for(value: Any) -> Any:
    """Charge a made value by its size, and return it."""
    if isinstance(value, str):
        FUEL.get().burn(1, len(value))
    else:
        FUEL.get().burn(1 + size_of(value))
    return value


def size_of(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict | range | set | frozenset) else 0


def check_call(name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a filter or method `name` on `value` that would make something huge at once; charge its arguments."""
    given = (*args, *kwargs.values())
    FUEL.get().burn(1 + sum(map(size_of, (value, *given))) // 16)
    if name in PADDING and any(isinstance(arg, int) and abs(arg) > MAX_WIDTH for arg in given):
        raise FuelError(f"{name} with a width over {MAX_WIDTH}")
    if name == "format" and isinstance(value, str) and WIDE_FORMAT.search(value):
        raise FuelError("a format with a huge width")
    if name == "replace" and isinstance(value, str) and len(given) >= 2 and all(isinstance(a, str) for a in given[:2]):
        FUEL.get().burn(0, (value.count(given[0]) if given[0] else len(value) + 1) * len(given[1]))
    if name == "join":
        separator = given[0] if given and isinstance(given[0], str) else value if isinstance(value, str) else ""
        FUEL.get().burn(0, len(separator) * max(size_of(value), *map(size_of, given), 0))


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would be huge."""
    if operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple | bytes) and isinstance(times, int):
                FUEL.get().burn(len(value) * max(times, 0) // 16, len(value) * max(times, 0))
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * max(right, 0))
    elif operator == "%" and isinstance(left, str) and WIDE_FORMAT.search(left):
        raise FuelError("a format with a huge width")


def _check_bits(bits: int) -> None:
    if bits > 4096:
        raise FuelError("an integer of more than 4096 bits")


def paid_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, with its arguments and result charged. Keeps Jinja's marks on it (what it wants passed first)."""
    passed_first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def paid(*args: Any, **kwargs: Any) -> Any:
        own = args[passed_first:]
        check_call(name, own[0] if own else None, own[1:], kwargs)
        return pay_for(function(*args, **kwargs))

    return paid
