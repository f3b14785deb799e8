"""A tiny Inkling in NVFP4 behind the real server: every case of the checker, and SGLang's KL helpers, find nothing."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
import requests
from rich.console import Console

from tests.check.test_hybrid import CASES
from tests.http.real import LAUNCHED, real_server
from tests.http.sglang_kl import MODEL, SINGLE_TURN, THRESHOLD, divergences, single_turn
from tests.quant.nvfp4_files import write_packed
from zerokl.check.checking import Options, run_check
from zerokl.check.outcome import Status
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=25, stage="base-b", runner_config="cpu-small")
register_cpu_ci(est_time=150, stage="nightly", runner_config="cpu-small", nightly=True)

FLAGS = (
    "--quantization",
    "modelopt_fp4",
    "--log-level",
    "warning",
    "--enable-hierarchical-cache",
    "--max-total-tokens",
)
QUICK = ("warm-prefix", "warm-decode", "chunks", "lengths")


def check(tmp_path: Any, cases: tuple[str, ...], pool_tokens: int) -> int:
    with real_server(*LAUNCHED, str(write_packed(tmp_path / "model")), *FLAGS, str(pool_tokens)) as url:
        report = asyncio.run(run_check(Options(url, cases=cases, diagnose=False), Console(file=io.StringIO())))
    found = {result.case.name: (result.status, result.reason) for result in report.results}
    assert found == dict.fromkeys(cases, (Status.EQUAL, ""))
    assert report.differing == 0
    return report.values


@pytest.mark.slow
def test_no_value_differs(tmp_path):
    assert check(tmp_path, QUICK, 2048) > 5_000


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_no_value_differs_in_any_case(tmp_path):
    assert check(tmp_path, CASES, 6144) > 100_000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sglangs_helpers_find_no_divergence(tmp_path, capsys):
    prompts = 16
    with real_server(*LAUNCHED, str(write_packed(tmp_path / "model")), *FLAGS, "8192") as url:
        interval = requests.get(url + "/server_info").json()["prefix_interval"]
        helpers = single_turn(url, prompts, interval + 6, 2 * interval + 70)
        for name in SINGLE_TURN:
            helper = getattr(helpers, name)
            helper(url, {MODEL: {"kl_div": THRESHOLD}}, MODEL, max_samples=prompts, max_new_tokens=72)
            assert divergences(capsys.readouterr().out) == [0.0] * prompts
