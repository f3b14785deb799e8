"""SGLang's launch lines as a config of ours, with one log line for each flag that changes nothing."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import click

from zerokl.cli.options import type_of
from zerokl.cli.sglang_flags import TABLE, Row, find, known_names
from zerokl.config import Config, options
from zerokl.errors import ConfigError

log = logging.getLogger(__name__)

FIELDS = {field.name: field for field in options()}


def config_from(arguments: Sequence[str]) -> Config:
    """Raises ConfigError: an unknown flag (names the nearest), a value we don't take, a feature we don't have."""
    values: dict[str, Any] = {}
    for flag, words in flags_of(arguments):
        row = find(flag)
        if row is None and flag.lstrip("-").replace("-", "_") in FIELDS:
            row = Row((flag,), "mapped", field=flag.lstrip("-").replace("-", "_"))
        if row is None:
            raise ConfigError(f"unknown flag {flag}; the nearest is {nearest(flag)}")
        _take(row, flag, words, values)
    return Config(**values)


def flags_of(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(flag, its words): whatever stands before the next flag, or after a `=`. SGLang has no positional argument."""
    flag, words = "", list[str]()
    for argument in arguments:
        if argument.startswith("--"):
            if flag:
                yield flag, words
            flag, equals, value = argument.partition("=")
            words = [value] if equals else []
        elif flag:
            words.append(argument)
        else:
            raise ConfigError(f"unexpected {argument!r}: every option is a flag, as --model-path")
    if flag:
        yield flag, words


def nearest(flag: str) -> str:
    ours = ["--" + name.replace("_", "-") for name in FIELDS]
    return difflib.get_close_matches(flag, [*known_names(), *ours], n=1, cutoff=0)[0]


def _take(row: Row, flag: str, words: list[str], values: dict[str, Any]) -> None:
    match row.kind:
        case "refused":
            raise ConfigError(f"{flag}: zerokl doesn't do this: {row.why}")
        case "only":
            if not all(word.lower() in row.values for word in words) or not (words or not row.values):
                allowed = ", ".join(row.values) or "nothing"
                raise ConfigError(f"{flag} {' '.join(words)}: {row.why}; accepted: {allowed}")
        case "always":
            log.info("%s: always so: %s", flag, row.why)
        case "idle":
            log.info("%s has no effect: %s", flag, row.why)
        case "mapped":
            _map(row, flag, words, values)


def _map(row: Row, flag: str, words: list[str], values: dict[str, Any]) -> None:
    field = FIELDS[row.field]
    kind = str(field.type)
    if kind == "bool":
        values[row.field] = not words or words[0].lower() == "true"
    elif row.field == "chunked_prefill_size" and words == ["-1"]:
        log.info("%s -1 has no effect: chunks change no bit", flag)
    elif row.field == "cuda_graph_bs":
        values[row.field] = ",".join(words)
    elif kind.startswith("tuple"):
        values[row.field] = tuple(words)
    elif len(words) != 1:
        raise ConfigError(f"{flag} takes one value, got {' '.join(words) or 'none'}")
    else:
        values[row.field] = _converted(flag, dict(row.same_as).get(words[0], words[0]), field)


def _converted(flag: str, word: str, field: Any) -> Any:
    try:
        return type_of(field).convert(word, None, None)
    except click.BadParameter as error:
        raise ConfigError(f"{flag}: {error.message}") from None


def document() -> str:
    """docs/sglang-flags.md, made from the table."""
    lines = [
        "# SGLang's launch flags",
        "",
        "`python -m zerokl.launch_server` takes SGLang's launch lines (0.5.23) as they are. Made from",
        "`src/zerokl/cli/sglang_flags.py` by `make docs`. `*`: all flags that begin so; the first row that fits",
        "counts.",
        "Any other flag is an error that names the nearest. zerokl's own flags work too.",
        "",
        "| flag | here | |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *map(_line, TABLE)]) + "\n"


def _line(row: Row) -> str:
    names = " ".join(f"`{name}`" for name in row.names)
    here = {
        "mapped": f"`--{row.field.replace('_', '-')}`",
        "always": "always so",
        "idle": "accepted, no effect",
        "only": "accepted: " + (", ".join(f"`{value}`" for value in row.values) or "unset"),
        "refused": "an error",
    }[row.kind]
    words = "; ".join(f"`{theirs}` is `{ours}`" for theirs, ours in row.same_as)
    return f"| {names} | {here} | {'; '.join(part for part in (row.why, words) if part)} |"
