"""Options that all tests share."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("zerokl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("zerokl")  # a busy machine is no failure


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--frontend",
        choices=["both", "python", "rust"],
        default="both",
        help="which HTTP frontend tests/http talks to; both: each, where that takes seconds",
    )
    parser.addoption("--write-goldens", action="store_true", help="write our own golden bits anew (make goldens)")
