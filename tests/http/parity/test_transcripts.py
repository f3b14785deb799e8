"""Recorded answers: Python's frontend wrote them (`make goldens`), and both must give them again, byte for byte."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.live import live_each
from tests.http.parity.exchanges import Case, exchanged
from tests.http.parity.groups import GROUPS, Group

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[2] / "goldens" / "http"


def answers(kind: str, group: Group) -> list[dict[str, Any]]:
    """Each case with its answer. The cache is emptied before each, so that none depends on another."""
    with live_each((kind,), **group.options) as [server]:
        return [answered(server.client, server.url, case, group.admin) for case in group.cases]


def answered(client: httpx.Client, url: str, case: Case, admin: str) -> dict[str, Any]:
    key = {"authorization": f"Bearer {admin}"} if admin else {}
    assert client.post("/flush_cache", params={"timeout": 10}, headers=key).status_code == 200
    answer = asdict(exchanged(url, case))
    return {"why": case.why, "request": f"{case.method} {case.path}", **answer, "body": list(answer["body"])}


def read(name: str) -> list[dict[str, Any]]:
    recorded: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return recorded


def write(name: str, recorded: list[dict[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in recorded)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


@pytest.mark.parametrize("kind", ["python", "rust"])
@pytest.mark.parametrize("name", GROUPS)
def test_answers_are_those_of_the_golden_transcript(name: str, kind: str, request: pytest.FixtureRequest) -> None:
    given = answers(kind, GROUPS[name])
    if kind == "python" and request.config.getoption("--write-goldens"):
        write(name, given)
    recorded = read(name)
    for now, then in zip(given, recorded, strict=True):
        assert now == then


def test_there_are_three_hundred_cases_and_each_says_what_it_is_for() -> None:
    cases = [case for group in GROUPS.values() for case in group.cases]
    assert len(cases) >= 300
    assert all(case.why for case in cases)
    assert {path.stem for path in FOLDER.glob("*.json")} == set(GROUPS)
