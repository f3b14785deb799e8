"""The case that this project was started for, on four ranks: SGLang's KL helpers past the window, all prompts hitting.

A model with Inkling-Small's layers: two dense, four with experts; local ones with a window of 512 and global ones; its
numbers of experts chosen and shared. Widths are tiny, heads and experts don't divide evenly among the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.http.real import LAUNCHED, real_server
from tests.http.sglang_kl import MODEL, SINGLE_TURN, THRESHOLD, divergences, single_turn
from tests.models.families import servable_family
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=40, stage="base-b", runner_config="cpu-small")
register_cpu_ci(est_time=900, stage="nightly", runner_config="cpu-small", nightly=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LOCAL, GLOBAL = "hybrid_sliding", "hybrid"
SHAPE: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layer_types": [LOCAL, GLOBAL, LOCAL, LOCAL, LOCAL, GLOBAL],
    "mlp_layer_types": ["dense", "dense", "sparse", "sparse", "sparse", "sparse"],
    "sliding_window_size": 512,
    "rel_extent": 1024,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "swa_num_attention_heads": 6,
    "swa_num_key_value_heads": 2,
    "n_routed_experts": 16,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 72,
    "max_position_embeddings": 4096,
    "log_scaling_n_floor": 600,
}
RANKS = 4


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = servable_family(tmp_path_factory.mktemp("inkling") / "model", "inkling", **SHAPE)
    flags = ("--tp", str(RANKS), "--dtype", "bfloat16", "--log-level", "warning", "--max-total-tokens", "131072")
    with real_server(*LAUNCHED, str(folder), *flags) as found:
        yield found


@pytest.mark.parametrize(
    ("prompts", "new_tokens"),
    [(4, 72), pytest.param(32, 1024, marks=pytest.mark.nightly)],
    ids=["short", "whole"],
)
@pytest.mark.parametrize("name", SINGLE_TURN)
def test_no_prompt_diverges_past_the_window_and_every_prompt_hits(
    url: str, name: str, prompts: int, new_tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts are longer than the window, so that what is generated has lost its beginning."""
    requests.post(url + "/flush_cache")
    helpers = single_turn(url, prompts, 520, 700)
    threshold = {MODEL: {"kl_div": THRESHOLD}}
    getattr(helpers, name)(url, threshold, MODEL, max_samples=prompts, max_new_tokens=new_tokens)
    assert divergences(capsys.readouterr().out) == [0.0] * prompts
