"""SGLang's own KL helpers, unchanged, against our server with the real model: their threshold is ours, 1e-9.

Their file comes out of their public wheel and is loaded as it is, with a stub where it imports its tokenizer loader and
local prompts where it would download a data set. It is never part of this repository.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.http.live import wait_until
from tests.http.real import LAUNCHED_AS_SGLANG, real_server
from tests.http.sglang_wheel import load
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=200, stage="base-b", runner_config="cpu-small")

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(600)]

MODEL = "smollm2"
PROMPTS, SHORTEST, LONGEST = 48, 70, 200
"""Their number of prompts; lengths from just over one page of ours to three, so that two cores need no ten minutes."""
THRESHOLD = {MODEL: {"kl_div": 1e-9}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """SGLang's launch line, as it is."""
    flags = ["--random-seed", "42", "--enable-deterministic-inference", "--disable-prefill-cuda-graph"]
    with real_server(*LAUNCHED_AS_SGLANG, *flags) as found:
        yield found


@pytest.fixture(scope="module")
def helpers(url: str) -> Any:
    """Their module, with prompts of our own corpus in its memory cache."""

    def encode(text: str) -> list[int]:
        ids: list[int] = requests.post(url + "/tokenize", json={"prompt": text}).json()["tokens"]
        return ids

    loader = {"get_tokenizer": lambda *args, **kwargs: types.SimpleNamespace(encode=encode)}
    parents = {key: dict[str, Any]() for key in ("sglang", "sglang.srt", "sglang.srt.utils")}
    module = load("sglang/test/kl_test_utils.py", {**parents, "sglang.srt.utils.hf_transformers_utils": loader})
    module._cached_input_ids[f"{MODEL}_{module.DEFAULT_PROMPT_TOKENS}_{PROMPTS}"] = prompts(encode)
    return module


def prompts(encode: Any) -> list[list[int]]:
    """48 pieces of English text, of lengths from just over a page to three pages."""
    corpus = Path(__file__).parents[2] / "src" / "zerokl" / "check" / "corpus" / "1-english.txt"
    ids = encode(corpus.read_text(encoding="utf-8"))
    lengths = [SHORTEST + (LONGEST - SHORTEST) * i // (PROMPTS - 1) for i in range(PROMPTS)]
    starts = [(997 * i) % max(1, len(ids) - LONGEST) for i in range(PROMPTS)]
    return [ids[start : start + length] for start, length in zip(starts, lengths, strict=True)]


@pytest.mark.parametrize(
    "name",
    [
        "test_input_output_logprobs_match_helper",
        "test_input_output_logprobs_match_prefill_cache_hit_helper",
        "test_input_output_logprobs_match_decode_cache_hit_helper",
    ],
)
def test_sglangs_helper_finds_no_divergence(
    url: str, helpers: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    getattr(helpers, name)(url, THRESHOLD, MODEL, max_new_tokens=72)
    printed = capsys.readouterr().out
    assert re.findall(r"^avg_kl_div=(.*)$", printed, re.MULTILINE) == ["0.0"]
    found = re.search(r"^kl_divs=\[(.*)\]$", printed, re.MULTILINE)
    assert found
    divergences = re.findall(r"-?\d+\.\d+(?:e[+-]\d+)?", found.group(1).replace("np.float64", ""))
    assert len(divergences) == PROMPTS
    assert set(map(float, divergences)) == {0.0}


def test_the_helpers_threshold_sees_a_hundredth_but_not_one_bit_so_equality_is_asked_above(helpers: Any) -> None:
    one_bit = [[-1.0, -2.0000002384185791]]
    helpers.compare_kl_divergence([[-1.0, -2.0]], one_bit, THRESHOLD, MODEL, "planted")
    with pytest.raises(AssertionError):
        helpers.compare_kl_divergence([[-1.0, -2.01]], one_bit, THRESHOLD, MODEL, "planted")


def test_the_server_was_asked_and_not_a_cache(url: str) -> None:
    info = requests.get(url + "/server_info").json()["internal_states"][0]
    assert info["submitted"] >= 48 * 7
    wait_until(lambda: requests.get(url + "/health").status_code == 200)
