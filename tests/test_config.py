"""The config: what it declares is all that is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import zerokl
from zerokl.config import ENVIRONMENT, environment

SOURCES = Path(zerokl.__file__).parent


def test_environment_variables_are_declared_or_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROKL_CACHE", "here")
    assert environment("ZEROKL_CACHE") == "here"
    monkeypatch.delenv("ZEROKL_CACHE")
    assert environment("ZEROKL_CACHE") == ""
    monkeypatch.setenv("ZEROKL_SECRET_SWITCH", "1")
    with pytest.raises(KeyError, match="not among the declared"):
        environment("ZEROKL_SECRET_SWITCH")


def test_nothing_reads_the_environment_past_the_config() -> None:
    reads = re.compile(r"os\.environ\.get|os\.environ\[|getenv")
    found = {path.name for path in SOURCES.rglob("*.py") if reads.search(path.read_text(encoding="utf-8"))}
    assert found == {"config.py"}


def test_every_declared_variable_has_its_use() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py"))
    assert all(f'environment("{name}")' in text for name in ENVIRONMENT)
