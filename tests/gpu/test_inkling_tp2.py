"""The case that this project was started for, on two GPUs at its real widths: SGLang's KL helpers, past the window.

Inkling-Small's layers, cut to six: two dense, four with 256 experts in NVFP4; local ones with a window of 512 and
global ones. Seeded weights, graphs for decode and prefill. `tests/parallel/test_sglang_kl.py` is the same on CPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.checkpoints.tiny import make_tiny_llama
from tests.cli.test_dry_run import INKLING_SMALL
from tests.gpu.ranks import SHARED_GPUS, need
from tests.http.real import LAUNCHED, real_server
from tests.http.sglang_kl import MODEL, SINGLE_TURN, THRESHOLD, divergences, single_turn
from zerokl.suites import register_cuda_ci

register_cuda_ci(est_time=120, stage="extra-b", runner_config="1-gpu-small")

pytestmark = [pytest.mark.device, pytest.mark.timeout(900), SHARED_GPUS]

PROMPTS, NEW_TOKENS = 32, 1024
FLAGS = ("--tp", "2", "--load-format", "dummy", "--quantization", "modelopt_fp4", "--max-total-tokens", "131072")


def six_layers(folder: Path) -> Path:
    make_tiny_llama(folder, seed=1)
    layers = {"num_hidden_layers": 6, "local_layer_ids": [0, 2, 3, 4], "model_max_length": 4096}
    config = INKLING_SMALL | {"text_config": INKLING_SMALL["text_config"] | layers}  # type: ignore[operator]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need(2)
    folder = six_layers(tmp_path_factory.mktemp("inkling") / "model")
    with real_server(*LAUNCHED, str(folder), "--device", "cuda", "--log-level", "warning", *FLAGS) as found:
        yield found


@pytest.mark.parametrize("name", SINGLE_TURN)
def test_no_prompt_diverges_past_the_window_and_every_prompt_hits(
    url: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    requests.post(url + "/flush_cache")
    helpers = single_turn(url, PROMPTS, 520, 700)
    threshold = {MODEL: {"kl_div": THRESHOLD}}
    getattr(helpers, name)(url, threshold, MODEL, max_samples=PROMPTS, max_new_tokens=NEW_TOKENS)
    assert divergences(capsys.readouterr().out) == [0.0] * PROMPTS
