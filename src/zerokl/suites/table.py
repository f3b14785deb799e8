"""The table of stages and runners, `suites.toml` beside the tests: needs, not machines, and what each need maps to."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from zerokl.errors import ConfigError
from zerokl.suites.registration import nearest

NAME = "suites.toml"


@dataclass(frozen=True, slots=True)
class Stage:
    """Stages run in the table's order; a red one keeps the later ones from running."""

    name: str
    about: str = ""
    commands: tuple[str, ...] = ()
    """Shell commands that run before the stage's tests (lint), each reported like a file."""
    command_limit_s: float = 1800.0
    shards: int = 1
    shard_limit_s: float = 1800.0
    """Estimated seconds that one shard may take; `plan` refuses more."""
    skips_allowed: int | None = None
    """More skipped tests than this make the stage red: a suite can't quietly stop testing. None: any number."""
    on_request: bool = False
    """Runs only when it is named (nightly, or by a pull request's label)."""


@dataclass(frozen=True, slots=True)
class Runner:
    """What a registration needs of a machine, and the labels of the CI machines that have it."""

    name: str
    labels: tuple[str, ...] = ()
    cpus: int = 1
    memory_gib: float = 0.0
    gpus: int = 0
    gpu_memory_gib: float = 0.0
    capability: tuple[float, float] = (0.0, math.inf)
    """Lowest and highest compute capability."""
    setup: tuple[str, ...] = ()
    """Commands with which a CI job prepares such a machine."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long one file may run: max(least_s, factor * estimate)."""

    least_s: float = 300.0
    factor: float = 4.0
    disabled_days: int = 90

    def seconds(self, est_time: float) -> float:
        return max(self.least_s, self.factor * est_time)


@dataclass(frozen=True, slots=True)
class Table:
    root: Path
    """The project: where commands run and file names start."""
    folder: Path
    """The tests, and where the table stands."""
    stages: dict[str, Stage]
    runners: dict[str, Runner]
    limits: Limits = field(default_factory=Limits)
    marks: dict[str, str] = field(default_factory=dict)
    """pytest's -m by backend, and "nightly"."""


def find(start: Path) -> Table:
    """The table of the project that `start` is in; raises ConfigError if none is found."""
    for folder in (start, *start.parents):
        for place in (folder / NAME, folder / "tests" / NAME):
            if place.is_file():
                return load(place)
    raise ConfigError(f"no {NAME} in {start}, in its tests folder, or above")


def load(path: Path) -> Table:
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    _known(content, ("root", "limits", "marks", "stages", "runners"), str(path))
    return Table(
        root=(path.parent / content.get("root", "..")).resolve(),
        folder=path.parent.resolve(),
        stages={name: _make(Stage, name, values, path) for name, values in content.get("stages", {}).items()},
        runners={name: _make(Runner, name, values, path) for name, values in content.get("runners", {}).items()},
        limits=_make(Limits, None, content.get("limits", {}), path),
        marks=content.get("marks", {}),
    )


def _make(kind: type[Any], name: str | None, values: dict[str, Any], path: Path) -> Any:
    _known(values, [field.name for field in fields(kind) if field.name != "name"], f"{path}: {name or 'limits'}")
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return kind(**given) if name is None else kind(name, **given)


def _known(values: dict[str, Any], names: object, where: str) -> None:
    for key in values:
        if key not in names:  # type: ignore[operator]  # a sequence of names
            raise ConfigError(f"{where}: no key {key!r}{nearest(key, names)}")
