"""All registrations of a project: each test file's own, or else those of the nearest folder's `__init__.py`."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from zerokl.errors import ConfigError
from zerokl.suites.registration import Registration, disabled_on, nearest, read
from zerokl.suites.table import Table

PATTERNS = ("test_*.py", "*_test.py")


@dataclass(frozen=True, slots=True)
class Registry:
    table: Table
    registrations: tuple[Registration, ...]

    def chosen(
        self,
        *,
        stages: Iterable[str] = (),
        backend: str | None = None,
        runner: str | None = None,
        nightly: bool = False,
    ) -> list[Registration]:
        """The enabled ones that fit, in the order of stages and names."""
        wanted = set(stages) or {stage.name for stage in self.table.stages.values() if nightly or not stage.on_request}
        return [
            one
            for one in self.registrations
            if one.disabled is None
            and one.stage in wanted
            and one.nightly == nightly
            and (backend is None or one.backend == backend)
            and (runner is None or one.runner_config == runner)
        ]

    def disabled(self) -> list[Registration]:
        return [one for one in self.registrations if one.disabled is not None]


def collect(table: Table, today: datetime.date | None = None) -> Registry:
    """Reads every test file under the table's folder. Raises ConfigError that lists all mistakes at once."""
    found: list[Registration] = []
    mistakes: list[str] = []
    folders: dict[Path, list[Registration]] = {}
    for path in files_with_tests(table.folder):
        name = path.relative_to(table.root).as_posix()
        try:
            own = read(path, name) or [replace(one, file=name) for one in _inherited(path.parent, table, folders)]
        except ConfigError as error:
            mistakes.append(str(error))
            continue
        if not own:
            mistakes.append(f"{name}: registers nothing, and no __init__.py above it does")
        found += own
    for one in found:
        mistakes += _mistakes(one, table, today or datetime.date.today())
    mistakes += [f"{name}: registered twice for {suite}" for name, suite in _twice(found)]
    if mistakes:
        raise ConfigError("\n".join(dict.fromkeys(mistakes)))
    order = list(table.stages)
    return Registry(table, tuple(sorted(found, key=lambda one: (order.index(one.stage), one.file, one.suite))))


def files_with_tests(folder: Path) -> Iterator[Path]:
    yield from sorted({path for pattern in PATTERNS for path in folder.rglob(pattern)})


def _inherited(folder: Path, table: Table, known: dict[Path, list[Registration]]) -> list[Registration]:
    """What the nearest `__init__.py` registers, from `folder` up to the table's own folder."""
    if folder not in known:
        init = folder / "__init__.py"
        own = read(init, init.relative_to(table.root).as_posix()) if init.is_file() else []
        known[folder] = own or ([] if folder == table.folder else _inherited(folder.parent, table, known))
    return known[folder]


def _mistakes(one: Registration, table: Table, today: datetime.date) -> Iterator[str]:
    if one.stage not in table.stages:
        yield f"{one.source}: no stage {one.stage!r}{nearest(one.stage, table.stages)}"
    if one.runner_config not in table.runners:
        yield f"{one.source}: no runner {one.runner_config!r}{nearest(one.runner_config, table.runners)}"
    elif one.backend == "cuda" and not table.runners[one.runner_config].gpus:
        yield f"{one.source}: register_cuda_ci on the runner {one.runner_config!r}, which has no GPU"
    if one.disabled is not None and (age := (today - disabled_on(one.disabled)).days) > table.limits.disabled_days:
        yield f"{one.source}: disabled for {age} days, {table.limits.disabled_days} are allowed: {one.disabled}"


def _twice(found: list[Registration]) -> Iterator[tuple[str, str]]:
    seen: set[tuple[str, str, str, bool]] = set()
    for one in found:
        key = (one.file, one.backend, one.suite, one.nightly)
        if key in seen:
            yield one.file, one.suite
        seen.add(key)
