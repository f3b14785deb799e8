"""What `serve run zerokl.serve_ray:app NAME=VALUE ...` means: a server's flags, and how many replicas. No Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from zerokl.cli.options import config_of, config_options
from zerokl.config import Config
from zerokl.errors import ConfigError

OURS = ("host", "port", "frontend", "replicas", "requests_per_replica")
"""Not a server's to choose: a replica listens on its own machine only."""


@dataclass(frozen=True, slots=True)
class Deployed:
    config: Config
    flags: tuple[str, ...]
    """Of `zerokl serve`, as they were given."""
    least: int
    most: int
    requests_per_replica: int
    """More than this on average, and Ray adds a replica."""

    @property
    def gpus(self) -> int:
        return self.config.tp if self.config.device == "cuda" else 0


@click.command()
@config_options("host", "port", "frontend")
def flags_of_a_server(**values: Any) -> None:
    """Never run: its parser is what is wanted."""


def deployed(options: Mapping[str, Any]) -> Deployed:
    """Raises ConfigError, also for what no server has."""
    flags = tuple(
        word for name, value in options.items() if name not in OURS for word in words_of(name.replace("_", "-"), value)
    )
    try:
        context = flags_of_a_server.make_context("zerokl", list(flags))
    except click.UsageError as error:
        raise ConfigError(error.format_message()) from error
    least, most = replicas_of(str(options.get("replicas", 1)))
    return Deployed(
        config_of(context.params),
        flags,
        least,
        most,
        count("requests_per_replica", options.get("requests_per_replica", 16)),
    )


def words_of(name: str, value: Any) -> tuple[str, ...]:
    """`serve run` gives words; a configuration file may give numbers and truths."""
    if value is True or value in ("true", "True"):
        return (f"--{name}",)
    return () if value is False or value in ("false", "False") else (f"--{name}", str(value))


def replicas_of(given: str) -> tuple[int, int]:
    """'2' -> (2, 2), '1-4' -> (1, 4)."""
    least, _, most = given.partition("-")
    first = count("replicas", least)
    last = count("replicas", most) if most else first
    if last < first:
        raise ConfigError(f"replicas={given}: the least is above the most")
    return first, last


def count(name: str, given: Any) -> int:
    if not str(given).isdecimal() or int(given) < 1:
        raise ConfigError(f"{name}={given}: a whole number above 0")
    return int(given)
