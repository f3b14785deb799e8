"""Plain decoders in NVFP4 and FP8 behind the real server, their keys and values narrow: scored and generated are one.

What breaks peers: a prefill that attends to the keys of its own step before they are rounded. Then a generated token's
logprob and the same token's, scored in a prompt, differ from the first position on that a decode step computed.
"""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from rich.console import Console

from tests.checkpoints.tiny import make_tiny_llama
from tests.http.real import LAUNCHED, real_server
from tests.models import run
from tests.models.memory import tiny_checkpoint
from tests.quant.test_cache import in_two_steps
from zerokl import models
from zerokl.check.checking import Options, run_check
from zerokl.check.outcome import Status
from zerokl.config import Config
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=20, stage="base-b", runner_config="cpu-small")

SERVED = [("modelopt_fp4", "fp8_e4m3", False), ("modelopt_fp8", "bfloat16", True), ("fp8", "fp8_e4m3", True)]
CASES = ("rescoring", "warm-prefix", "chunks")
STARTS = (1, 2, 63, 64, 65, 90)
"""Tokens before the first generated one: around a page's end."""


def served(folder: Path, kind: str, cache: str, is_qwen: bool) -> Any:
    about = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"} if is_qwen else {}
    make_tiny_llama(folder, 0, hidden_size=64, intermediate_size=128, **about)
    options = ("--load-format", "dummy", "--quantization", kind, "--kv-cache-dtype", cache, "--log-level", "warning")
    return real_server(*LAUNCHED, str(folder), *options, "--max-total-tokens", "4096")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cache", "is_qwen"), SERVED)
def test_scored_and_generated_agree_over_http_from_every_position(kind, cache, is_qwen, tmp_path):
    story = [int(token) for token in np.random.default_rng(3).integers(0, 280, max(STARTS))]
    with served(tmp_path / "model", kind, cache, is_qwen) as url:
        info = requests.get(url + "/server_info", timeout=20).json()
        assert kind_of(kind) in json.dumps(info["dtype"])
        for start in STARTS:
            generated = logprobs_of(url, story[:start], 24)
            tokens = story[:start] + [token for _, token in generated]
            scored = logprobs_of(url, tokens, 1, scored=True)[start:]
            assert [value for value, _ in scored] == [value for value, _ in generated], (kind, cache, start)
        report = asyncio.run(run_check(Options(url, cases=CASES, diagnose=False), Console(file=io.StringIO())))
    assert {result.case.name: result.status for result in report.results} == dict.fromkeys(CASES, Status.EQUAL)
    assert report.differing == 0
    assert report.values > 1000


def kind_of(option: str) -> str:
    return {"modelopt_fp4": "nvfp4", "modelopt_fp8": "fp8", "fp8": "fp8_block"}[option]


def logprobs_of(url: str, tokens: list[int], new: int, *, scored: bool = False) -> list[tuple[float, int]]:
    """(logprob, token) of what is generated after the tokens, or of the tokens themselves."""
    params = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
    body = {"input_ids": tokens, "sampling_params": params, "return_logprob": True}
    answer = requests.post(url + "/generate", json=body | {"logprob_start_len": 0 if scored else -1}, timeout=60).json()
    found = answer["meta_info"]["input_token_logprobs" if scored else "output_token_logprobs"]
    return [(value, token) for value, token, *_ in found]


def test_a_prefill_that_reads_unrounded_keys_differs_from_the_first_generated_position_on():
    """The planted defect, and that the comparison sees it where it begins."""
    tokens = [int(token) for token in np.random.default_rng(4).integers(0, 284, 100)]
    kept = models.load(tiny_checkpoint(), Config(kv_cache_dtype="fp8_e4m3"))
    unrounded = run.logits(models.load(tiny_checkpoint(), Config()), tokens, range(100))
    for start in (1, 63, 64, 65):
        assert not np.array_equal(in_two_steps(kept, tokens, start)[0], unrounded[start])
