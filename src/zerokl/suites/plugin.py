"""The pytest plugin under `zerokl suite`: writes what happens, line by line, so that a killed job leaves its records.

    def test_same_bits(conditions):
        conditions.note(temperature=7, neighbours=64)      # shown side by side if this test gives both results

`--suite-repeat K` runs each test K times in this process. Nothing is retried. What zerokl's engines ran meanwhile is
noted without being asked for: in this process, or in servers that a test started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

import orjson
import pytest
from _pytest.runner import runtestprotocol

from zerokl.config import environment

STEP_NOTES = "ZEROKL_STEP_NOTES"
"""Where engines note their steps, see engine/step_notes.py."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("suites")
    group.addoption("--suite-events", metavar="FILE", help="Write one JSON object per event to this file.")
    group.addoption("--suite-repeat", type=int, default=1, metavar="K", help="Run each test K times.")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--suite-events"):
        config.pluginmanager.register(Recorder(Path(path), config.getoption("--suite-repeat")), "suite-recorder")


class Conditions:
    """What a test ran under: running requests, batch width, cached tokens, graph bucket, or whatever it knows."""

    def __init__(self) -> None:
        self.noted: dict[str, str | int | float | bool] = {}

    def note(self, **conditions: str | int | float | bool) -> None:
        self.noted.update(conditions)


@pytest.fixture
def conditions(request: pytest.FixtureRequest) -> Conditions:
    """Note conditions here; they stand in the events of this run of the test."""
    noted = Conditions()
    request.node.stash[STASH] = noted
    return noted


STASH: pytest.StashKey[Conditions] = pytest.StashKey()


class Steps:
    """What engines noted since the last look, one condition each: cached tokens in all, else the most at a time."""

    def __init__(self) -> None:
        name = environment(STEP_NOTES)
        self._path = Path(name) if name else None
        self._read = 0

    def take(self) -> dict[str, int]:
        if self._path is None or not self._path.exists():
            return {}
        with self._path.open("rb") as file:
            file.seek(self._read)
            lines = file.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        self._read += sum(map(len, whole))
        steps = [orjson.loads(line) for line in whole]
        names = dict.fromkeys(name for step in steps for name in step)
        return {name: _over([step[name] for step in steps if name in step], name) for name in names}


def _over(values: list[int], name: str) -> int:
    return sum(values) if name == "cached_tokens" else max(values)


class Recorder:
    """Writes events and flushes each: collected, start, phase, error (of collection), end."""

    def __init__(self, path: Path, repeat: int) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8")
        self._repeat = repeat
        self._attempt = 1
        self._steps = Steps()
        self._deselected = 0

    def write(self, event: str, **values: Any) -> None:
        self._file.write(orjson.dumps({"event": event, **values}).decode() + "\n")
        self._file.flush()

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._deselected += len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write("error", where=report.nodeid, text=report.longreprtext)
        elif report.skipped:
            self.write("skipped_file", where=report.nodeid, text=_reason(report))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.write("collected", tests=[item.nodeid for item in session.items], deselected=self._deselected)

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """The parent as the next item keeps module and session fixtures between two runs of one test."""
        hook = item.ihook
        for attempt in range(1, self._repeat + 1):
            self._attempt = attempt
            item.stash.setdefault(STASH, Conditions()).noted = {}
            self._steps.take()
            following: Any = nextitem if attempt == self._repeat else item.parent
            self.write("start", test=item.nodeid, attempt=attempt)
            hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            runtestprotocol(item, nextitem=following)
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            noted = {**self._steps.take(), **item.stash[STASH].noted}
            self.write("done", test=item.nodeid, attempt=attempt, conditions=noted)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.write(
            "phase",
            test=report.nodeid,
            attempt=self._attempt,
            when=report.when,
            outcome="xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome,
            seconds=report.duration,
            text=_reason(report) if report.skipped else report.longreprtext if report.failed else "",
        )

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self.write("end", exit=int(exitstatus))


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Why it was skipped: the last of (file, line, reason)."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(getattr(report, "wasxfail", "")) or report.longreprtext
