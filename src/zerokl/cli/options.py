"""Flags from the config's fields: name, type, range, help and default come from `config.py` alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import click

from zerokl.config import Config, options

Function = Callable[..., Any]


class IntOrWord(click.ParamType[int | str]):
    """A whole number, or one word that stands for a choice made later."""

    name = "integer or 'random'"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int | str:
        if value == "random":
            return "random"
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a whole number nor 'random'", param, context)


def config_options(*left_out: str) -> Callable[[Function], Function]:
    """A decorator that gives a command one flag per config field, except those named."""

    def decorate(function: Function) -> Function:
        for field in reversed(options()):
            if field.name not in left_out:
                function = option_of(field)(function)
        return function

    return decorate


def option_of(field: dataclasses.Field[Any]) -> Callable[[Function], Function]:
    kind = str(field.type)
    names = [flag_of(field.name), *field.metadata["aliases"], field.name]
    if kind == "bool":
        return click.option(*names, is_flag=True, default=field.default, help=field.metadata["help"])
    return click.option(
        *names,
        type=type_of(field),
        multiple=kind.startswith("tuple"),
        default=field.default,
        show_default=field.default not in (None, "", ()),
        help=field.metadata["help"],
    )


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def type_of(field: dataclasses.Field[Any]) -> click.ParamType[Any]:
    meta, kind = field.metadata, str(field.type).removesuffix(" | None")
    if meta["choices"]:
        return click.Choice(meta["choices"])
    if kind == "int | str":
        return IntOrWord()
    if kind == "int":
        return click.IntRange(meta["minimum"], meta["maximum"])
    if kind == "float":
        return click.FloatRange(meta["minimum"], meta["maximum"])
    return click.STRING


def config_of(values: dict[str, Any]) -> Config:
    """The config of a command's parsed values; other keys are not its business."""
    known = {field.name for field in options()}
    return Config(**{name: value for name, value in values.items() if name in known})
