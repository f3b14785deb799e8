"""SGLang's own KL helpers, unchanged, against our server with the real model: their threshold is ours, 1e-9.

Their file comes out of their public wheel and is loaded as it is, with a stub where it imports its tokenizer loader and
local prompts where it would download a data set. It is never part of this repository.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import types
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.http.live import wait_until
from zerokl.checkpoints.cache_folder import cache_folder

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(600)]

WHEEL = "sglang==0.5.23"
MEMBER = "sglang/test/kl_test_utils.py"
MODEL = "smollm2"
PROMPTS, SHORTEST, LONGEST = 48, 70, 200
"""Their number of prompts; lengths from just over one page of ours to three, so that two cores need no ten minutes."""
THRESHOLD = {MODEL: {"kl_div": 1e-9}}


def helper_file() -> Path:
    """Their file, downloaded once."""
    folder = cache_folder() / "sglang"
    wheels = list(folder.glob("sglang-0.5.23-*.whl"))
    if not wheels:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), WHEEL]
        if subprocess.run(command, check=False, timeout=500).returncode:
            pytest.skip(f"{WHEEL} can't be downloaded, and SGLang's helpers are not part of this repository")
        wheels = list(folder.glob("sglang-0.5.23-*.whl"))
    with zipfile.ZipFile(wheels[0]) as wheel:
        return Path(wheel.extract(MEMBER, folder))


@dataclass(slots=True)
class Served:
    url: str
    log: list[str]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """SGLang's launch line, as it is."""
    flags = ["--model-path", "", "--port", "0", "--random-seed", "42", "--enable-deterministic-inference"]
    process = subprocess.Popen(
        [sys.executable, "-m", "zerokl.launch_server", *flags, "--disable-prefill-cuda-graph"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    line = process.stdout.readline()
    try:
        found = re.search(r"http://[\d.:]+", line)
        assert found, f"the server did not start: {line}"
        yield Served(found.group(), [line])
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


@pytest.fixture(scope="module")
def helpers(served: Served) -> Any:
    """Their module, with prompts of our own corpus in its memory cache."""
    import requests

    def encode(text: str) -> list[int]:
        ids: list[int] = requests.post(served.url + "/tokenize", json={"prompt": text}).json()["tokens"]
        return ids

    name = "sglang.srt.utils.hf_transformers_utils"
    stub = types.ModuleType(name)
    stub.get_tokenizer = lambda *args, **kwargs: types.SimpleNamespace(encode=encode)  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("kl_test_utils", helper_file())
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for parent in ("sglang", "sglang.srt", "sglang.srt.utils"):
            patch.setitem(sys.modules, parent, types.ModuleType(parent))
        patch.setitem(sys.modules, name, stub)
        spec.loader.exec_module(module)
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
    served: Served, helpers: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    getattr(helpers, name)(served.url, THRESHOLD, MODEL, max_new_tokens=72)
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


def test_the_server_was_asked_and_not_a_cache(served: Served) -> None:
    import requests

    info = requests.get(served.url + "/server_info").json()["internal_states"][0]
    assert info["submitted"] >= 48 * 7
    wait_until(lambda: requests.get(served.url + "/health").status_code == 200)
