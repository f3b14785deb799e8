"""SGLang's own KL helpers, unchanged, against our server with the real model: their threshold is ours, 1e-9.

Their file comes out of their public wheel and is loaded as it is. It is never part of this repository.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.http.live import wait_until
from tests.http.real import LAUNCHED_AS_SGLANG, real_server
from tests.http.sglang_kl import MODEL, SINGLE_TURN, THRESHOLD, divergences, single_turn
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=200, stage="base-b", runner_config="cpu-small")

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(600)]

PROMPTS, SHORTEST, LONGEST = 48, 70, 200
"""Their number of prompts; lengths from just over one page of ours to three, so that two cores need no ten minutes."""


@pytest.fixture(scope="module")
def url(frontend: str) -> Iterator[str]:
    """SGLang's launch line, as it is."""
    flags = ["--random-seed", "42", "--enable-deterministic-inference", "--disable-prefill-cuda-graph"]
    with real_server(*LAUNCHED_AS_SGLANG, *flags) as found:
        yield found


@pytest.fixture(scope="module")
def helpers(url: str) -> Any:
    return single_turn(url, PROMPTS, SHORTEST, LONGEST)


@pytest.mark.parametrize("name", SINGLE_TURN)
def test_sglangs_helper_finds_no_divergence(
    url: str, helpers: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    getattr(helpers, name)(url, {MODEL: {"kl_div": THRESHOLD}}, MODEL, max_new_tokens=72)
    assert divergences(capsys.readouterr().out) == [0.0] * PROMPTS


def test_the_helpers_threshold_sees_a_hundredth_but_not_one_bit_so_equality_is_asked_above(helpers: Any) -> None:
    one_bit, threshold = [[-1.0, -2.0000002384185791]], {MODEL: {"kl_div": THRESHOLD}}
    helpers.compare_kl_divergence([[-1.0, -2.0]], one_bit, threshold, MODEL, "planted")
    with pytest.raises(AssertionError):
        helpers.compare_kl_divergence([[-1.0, -2.01]], one_bit, threshold, MODEL, "planted")


def test_the_server_was_asked_and_not_a_cache(url: str) -> None:
    info = requests.get(url + "/server_info").json()["internal_states"][0]
    assert info["submitted"] >= 48 * 7
    wait_until(lambda: requests.get(url + "/health").status_code == 200)
