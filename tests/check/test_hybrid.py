"""The real server with layers that remember something else than every key: every case that is about them, by HTTP.

The models are tiny and random, the pool is small, and there is a second tier, so that each case's event happens.
"""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.http.real import LAUNCHED, real_server
from tests.models.families import servable_family
from zerokl.check.checking import Options, run_check
from zerokl.check.outcome import Status
from zerokl.check.run import Report
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=25, stage="base-b", runner_config="cpu-small")
register_cpu_ci(est_time=300, stage="nightly", runner_config="cpu-small", nightly=True)

CASES = (
    *("warm-prefix", "warm-decode", "window-turns", "branches", "edges", "conversations", "crowd", "order", "pressure"),
    *("storm", "evictions", "second-tier", "chunks", "lengths"),
)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "inkling": ("inkling", {}),
    **{name: (name, {}) for name in ("mistral", "mixtral", "qwen3-moe", "gemma3", "lfm2")},
    **{name: (name, {}) for name in ("qwen3-next", "granite-hybrid", "gemma3-tied", "inkling-one-shared")},
    **{f"inkling, window {size}": ("inkling", {"sliding_window_size": size}) for size in (511, 512, 513)},
}
FLAGS = ("--enable-hierarchical-cache", "--log-level", "warning", "--max-total-tokens")


def check_served(name: str, folder: Path, cases: tuple[str, ...], pool_tokens: int) -> Report:
    family, overrides = MODELS[name]
    with real_server(*LAUNCHED, str(servable_family(folder, family, **overrides)), *FLAGS, str(pool_tokens)) as url:
        report = asyncio.run(run_check(Options(url, cases=cases, diagnose=False), Console(file=io.StringIO())))
    found = {result.case.name: (result.status, result.reason) for result in report.results}
    assert found == dict.fromkeys(cases, (Status.EQUAL, ""))
    assert report.differing == 0
    return report


@pytest.mark.slow
@pytest.mark.timeout(600)  # 25 s of work on an idle machine, and nothing in it depends on how long it takes
def test_inkling_differs_in_no_value_hits_as_predicted_and_every_event_happens(tmp_path: Path) -> None:
    cases = tuple(case for case in CASES if case not in ("crowd", "order", "pressure"))
    assert check_served("inkling", tmp_path / "model", cases, 2048).values > 20_000


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MODELS)
def test_no_value_differs_hits_are_as_predicted_and_every_event_happens(name: str, tmp_path: Path) -> None:
    assert check_served(name, tmp_path / "model", CASES, 6144).values > 100_000
