"""`zerokl serve` and SGLang's launch line with a real, tiny model: processes, engine and all."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.checkpoints.tiny import make_tiny_llama

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", seed=0)


@contextmanager
def launched(*command: str) -> Iterator[tuple[httpx.Client, str]]:
    """(a client, the ready line)"""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        line = process.stdout.readline()
        found = re.search(r"http://[\d.:]+", line)
        assert found, f"the server did not start: {line!r}"
        with httpx.Client(base_url=found.group(), timeout=60) as client:
            yield client, line
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()


def test_generated_tokens_are_rescored_to_the_same_bits(tiny: Path) -> None:
    with launched("-c", "from zerokl.cli import main; main()", "serve", str(tiny), "--port", "0") as (client, line):
        assert re.search(r"model \S+/model  fingerprint fp_[0-9a-f]{32}  weights \d+ MB  cache \d+ tokens", line)
        params = {"max_new_tokens": 40, "ignore_eos": True, "temperature": 0.7}
        ask = {
            "text": "hello there",
            "sampling_params": params,
            "return_logprob": True,
            "return_prompt_token_ids": True,
        }
        made = client.post("/generate", json=ask).json()
        ids = made["prompt_token_ids"] + made["output_ids"]
        ask = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        scored = client.post("/generate", json=ask).json()
        assert scored["meta_info"]["input_token_logprobs"][-40:] == made["meta_info"]["output_token_logprobs"]
        info = client.get("/server_info").json()
        assert info["weight_bytes"] > 0
        assert info["kv_bytes"] > 0
        assert info["fingerprint"] in line


def test_sglangs_launch_line_serves_the_same_fingerprint_and_bits(tiny: Path) -> None:
    def answer(client: httpx.Client) -> tuple[str, bytes]:
        body = {"prompt": "hello", "max_tokens": 8, "logprobs": 3, "temperature": 1, "seed": 1}
        response = client.post("/v1/completions", json=body)
        return response.headers["x-zerokl-fingerprint"], response.content

    common = ("--port", "0", "--random-seed", "42", "--test-clock", "1")
    theirs = ("--enable-deterministic-inference", "--disable-prefill-cuda-graph", "--served-model-name", "m")
    with launched("-m", "zerokl.launch_server", "--model-path", str(tiny), *common, *theirs) as (client, _):
        by_sglang = answer(client)
    ours = ("serve", str(tiny), *common, "--served-model-name", "m")
    with launched("-c", "from zerokl.cli import main; main()", *ours) as (client, _):
        assert answer(client) == by_sglang
