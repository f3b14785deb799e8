"""The Dockerfiles copy what is there and what the context lets through. Building them needs Docker and a network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_copied_path_exists_and_is_in_the_context(file: Path) -> None:
    allowed = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = [name for line in re.findall(r"^COPY (.*) \S+$", file.read_text(), re.MULTILINE) for name in line.split()]
    assert {"pyproject.toml", "Cargo.lock", "src", "crates"} <= set(copied) <= allowed
    assert all((ROOT / name).exists() for name in copied)


def test_the_license_and_readme_that_the_wheel_names_are_copied() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    named = {"README.md", "LICENSE"}
    assert all(f'"{name}"' in project for name in named)
    assert all(name in file.read_text() for name in named for file in FILES)
