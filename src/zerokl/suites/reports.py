"""JSON and JUnit per file, and a summary, rewritten whole after every file: a killed job leaves valid reports."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import orjson

from zerokl.suites.flaky import Flaky, find_flaky
from zerokl.suites.registration import Registration
from zerokl.suites.results import FileResult, Status

UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML can't hold."""


class Reports:
    """One folder. At once all planned files stand in it as not run; each result replaces one."""

    def __init__(self, folder: Path, planned: Sequence[Registration]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._results = {one: FileResult(one, Status.NOT_RUN, reason="the run ended before") for one in planned}
        self._write_summary()

    def log(self, one: Registration, suffix: str = "") -> Path:
        return self.folder / f"{_stem(one)}{suffix}.log"

    def add(self, result: FileResult) -> None:
        self._results[result.registration] = result
        stem = self.folder / _stem(result.registration)
        write(Path(f"{stem}.json"), _json(result.as_json()))
        write(Path(f"{stem}.xml"), junit([result]))
        self._write_summary()

    def _write_summary(self) -> None:
        results = list(self._results.values())
        write(self.folder / "summary.json", _json(summary(results)))
        write(self.folder / "junit.xml", junit(results))


def write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(content)
    draft.replace(path)


def summary(results: Sequence[FileResult]) -> dict[str, Any]:
    return {
        "red": any(result.status.red for result in results),
        "files": dict(Counter(result.status.value for result in results)),
        "tests": dict(sum((result.counts() for result in results), Counter())),
        "deselected": sum(result.deselected for result in results),
        "results": [
            {
                "file": result.name,
                "suite": result.registration.suite,
                "status": result.status.value,
                "reason": result.reason,
                "seconds": result.seconds,
                "est_time": result.registration.est_time,
                "counts": dict(result.counts()),
                "flaky": [_flaky(one) for one in find_flaky(result.tests)],
            }
            for result in results
        ],
    }


def _flaky(one: Flaky) -> dict[str, Any]:
    return {
        "test": one.test,
        "passed": len(one.passed),
        "failed": len(one.failed),
        "cause": one.cause,
        "conditions": [
            {
                "name": condition.name,
                "rows": [dict(zip(("value", "passed", "failed"), row, strict=True)) for row in condition.rows],
                "bits": condition.bits,
                "chance": condition.chance,
            }
            for condition in one.conditions
        ],
    }


def junit(results: Sequence[FileResult]) -> bytes:
    """A test case per run of a test; a file without any (not run, crashed early) is a case of its own."""
    root = ElementTree.Element("testsuites")
    for result in results:
        suite = ElementTree.SubElement(root, "testsuite", name=result.name, time=f"{result.seconds:.3f}")
        for test in result.tests:
            name = test.test.partition("::")[2] or test.test
            name = f"{name} (run {test.attempt})" if test.attempt > 1 else name
            case = ElementTree.SubElement(suite, "testcase", classname=result.name, name=name)
            case.set("time", f"{test.seconds:.3f}")
            _outcome(case, test.outcome, test.text)
        if not result.tests or result.status in (Status.TIMED_OUT, Status.CRASHED):
            case = ElementTree.SubElement(suite, "testcase", classname=result.name, name=result.name)
            _outcome(case, result.status.value, result.reason)
        cases = list(suite)
        suite.set("tests", str(len(cases)))
        for kind, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            suite.set(attribute, str(sum(case.find(kind) is not None for case in cases)))
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _outcome(case: ElementTree.Element, outcome: str, text: str) -> None:
    if outcome in ("passed", "xfailed"):
        return
    kind = {"failed": "failure", "unfinished": "error"}.get(outcome)
    if kind is None:
        kind = "error" if outcome in {status.value for status in Status if status.red} else "skipped"
    element = ElementTree.SubElement(
        case, kind, message=UNPRINTABLE.sub("?", text.strip().splitlines()[-1] if text.strip() else outcome)
    )
    element.text = UNPRINTABLE.sub("?", text)


def _stem(one: Registration) -> str:
    """A file name that no other registration has."""
    name = re.sub(r"[^\w.-]+", "-", one.file.removesuffix(".py")).strip("-")[:80]
    key = f"{one.file} {one.suite} {one.backend} {one.nightly}"
    return f"{name}.{hashlib.sha256(key.encode()).hexdigest()[:6]}"


def _json(content: Any) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n"
