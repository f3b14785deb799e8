"""The report in its other forms says what the JSON says."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.check.conftest import RunCheck
from zerokl.check.baseline import new_divergences
from zerokl.check.cli import exit_status
from zerokl.check.formats import junit, markdown
from zerokl.check.html import page
from zerokl.check.report import as_json

CASES = ("repeats", "warm-prefix", "streams")


@pytest.fixture
def different(run_fake: RunCheck) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(json.dumps(as_json(run_fake("stream_drops", *CASES, diagnose=True))))
    return report


@pytest.fixture
def equal(run_fake: RunCheck) -> dict[str, Any]:
    return as_json(run_fake("", *CASES))


def test_junit_counts_failures_and_names_the_cases(different: dict[str, Any]) -> None:
    suite = ElementTree.fromstring(junit(different))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")
    (failure,) = suite.findall("testcase/failure")
    assert failure.get("message", "").startswith(f"{different['cases'][2]['differing']} of ")


def test_markdown_has_the_verdict_first_and_the_diagnosis(different: dict[str, Any]) -> None:
    text = markdown(different)
    assert text.startswith(f"# {different['headline']}\n")
    assert "| streams | streamed against whole |" in text
    assert "## Diagnosis: streaming" in text


class Balance(HTMLParser):
    """Open elements that HTML wants closed."""

    LOOSE = frozenset({"meta", "br", "p", "th", "td", "tr", "rect", "circle", "line"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.LOOSE:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.LOOSE:
            assert self.open.pop() == tag


def test_page_is_whole_self_contained_and_escaped(different: dict[str, Any]) -> None:
    different["server"]["model"] = "<script>alert(1)</script>"
    text = page(different)
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert balance.links == []
    assert "url(" not in text
    assert "<script>" not in text
    assert f"{different['totals']['differing']:,} of {different['totals']['values']:,} values differ" in text
    assert "class=parted" in text


def test_page_of_an_equal_run_has_no_differences_to_show(equal: dict[str, Any]) -> None:
    text = page(equal)
    assert "0 of" in text
    assert "Answers that differ" not in text
    assert "hero equal" in text


def test_request_to_reproduce_is_valid_json(different: dict[str, Any]) -> None:
    (command, *_) = re.findall(r"curl -s http://fake/generate -d &#x27;(.*?)&#x27;", page(different))
    body = json.loads(command.replace("&quot;", '"'))
    assert body["input_ids"] == different["divergences"][0]["ask"]["ids"]


def test_known_differences_are_not_new(different: dict[str, Any], equal: dict[str, Any]) -> None:
    assert new_divergences(different, different) == []
    assert new_divergences(different, equal) == different["divergences"]


@pytest.mark.parametrize(
    ("code", "fail_on", "status"),
    [(1, "any", 1), (2, "any", 2), (1, "different", 1), (2, "different", 0), (1, "never", 0), (0, "any", 0)],
)
def test_exit_status_by_fail_on(code: int, fail_on: str, status: int) -> None:
    assert exit_status(code, fail_on) == status
