"""A whole server on 1, 2 and 4 ranks: nothing that `zerokl check` looks at differs, and neither do the servers."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
import requests
from rich.console import Console

from tests.checkpoints.tiny import make_tiny_llama
from tests.http.real import LAUNCHED, real_server
from tests.models.families import servable_family
from zerokl.check.checking import Options, run_check
from zerokl.check.outcome import Status
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=60, stage="base-b", runner_config="cpu-small")
register_cpu_ci(est_time=900, stage="nightly", runner_config="cpu-small", nightly=True)

pytestmark = pytest.mark.timeout(1200)

MODELS = ("llama", "qwen3-moe", "inkling")
FLAGS = ("--tp-leaves", "4", "--dtype", "bfloat16", "--log-level", "warning", "--enable-hierarchical-cache")
NOT_HERE = {"restart", "update"}
"""Cases that need a command or other weights."""
TIMED = {"arrivals", "long-prefill", "aborts", "abort-storm", "crowd", "storm"}
"""Cases that wait for something to happen meanwhile, which a busy or a very fast machine may not show."""
QUICK = ("rescoring", "warm-prefix", "warm-decode", "branches", "order", "chunks", "sampled")
"""What CI runs; nightly runs all: four processes on two cores take their time."""
PROMPTS = [[3 + (7 * i * i + 11 * place * place + 5 * place) % 250 for place in range(20 + 60 * i)] for i in range(4)]


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(str(request.param)) / "model"
    if request.param == "llama":
        return make_tiny_llama(path, seed=3)
    return servable_family(path, str(request.param))


def served(folder: Path, ranks: int, pool_tokens: int = 2048) -> Any:
    return real_server(*LAUNCHED, str(folder), *FLAGS, "--max-total-tokens", str(pool_tokens), "--tp", str(ranks))


def answers(url: str) -> Any:
    """(fingerprint, everything that each of some prompts is told)"""
    sampling = [{"max_new_tokens": 24, "temperature": 0.8 * (i % 2), "ignore_eos": True} for i in range(len(PROMPTS))]
    body = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    told = requests.post(url + "/generate", json={"input_ids": PROMPTS, "sampling_params": sampling, **body}).json()
    logprobs = ("input_token_logprobs", "output_token_logprobs", "input_top_logprobs", "output_top_logprobs")
    facts = [[one["output_ids"], *(one["meta_info"][key] for key in logprobs)] for one in told]
    return requests.get(url + "/server_info").json()["fingerprint"], facts


def assert_nothing_differs(url: str, least_values: int, cases: tuple[str, ...] = ()) -> None:
    """Every case; or some, with fewer and shorter prompts."""
    options = Options(url, diagnose=False, quick=bool(cases), cases=cases)
    report = asyncio.run(run_check(options, Console(file=io.StringIO())))
    not_equal = {result.case.name: result.reason for result in report.results if result.status is not Status.EQUAL}
    assert not_equal.keys() <= NOT_HERE | TIMED, not_equal
    assert all(result.status is not Status.DIFFERENT for result in report.results)
    assert report.differing == 0
    assert report.values > least_values


@pytest.mark.slow
def test_four_ranks_answer_as_one_and_two_and_the_check_finds_no_difference(folder: Path) -> None:
    found = []
    for ranks in (1, 2):
        with served(folder, ranks) as url:
            found.append(answers(url))
    with served(folder, 4) as url:
        found.append(answers(url))
        assert found[0] == found[1] == found[2]
        assert_nothing_differs(url, 2_000, QUICK)


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_no_case_of_the_check_differs_with_a_large_pool(folder: Path, ranks: int) -> None:
    with served(folder, ranks, 4096) as url:
        assert_nothing_differs(url, 180_000)
