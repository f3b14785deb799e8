"""SGLang's KL helpers, unchanged, on layers that remember something else than every key: 0.0, and every prompt hits.

Models are tiny and random. Prompts are longer than the checkpoint interval, answers longer than the window, and the
forms of several turns branch, interleaved; hits are asserted to be exactly the deepest checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from tests.http.real import LAUNCHED, real_server
from tests.http.sglang_kl import MODEL, SINGLE_TURN, THRESHOLD, divergences, several_turns, single_turn
from tests.models.families import servable_family
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=20, stage="base-b", runner_config="cpu-small")
register_cpu_ci(est_time=80, stage="nightly", runner_config="cpu-small", nightly=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FAMILIES = ("inkling", "mistral", "mixtral", "qwen3-moe", "gemma3", "lfm2", "qwen3-next", "granite-hybrid")
QUICK = ("inkling", "qwen3-next")
GROUPS, BRANCHES = 3, 3


@dataclass(frozen=True)
class Server:
    url: str
    interval: int
    new_tokens: int
    """More than the window: at the end of an answer no layer that has one sees the prompt."""
    num_prompts: int


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in FAMILIES],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    family = str(request.param)
    folder = servable_family(tmp_path_factory.mktemp(family) / "model", family)
    with real_server(*LAUNCHED, str(folder), "--log-level", "warning") as url:
        info = requests.get(url + "/server_info").json()
        widest = max((int(window) for window in info["bytes_per_sliding_token"]), default=0)
        yield Server(url, info["prefix_interval"], max(widest, info["page_size"]) + 8, 48)


@pytest.fixture(scope="module")
def helpers(server: Server) -> Any:
    return single_turn(server.url, server.num_prompts, server.interval + 6, 2 * server.interval + 70)


@pytest.mark.parametrize("name", SINGLE_TURN)
def test_no_prompt_diverges_and_none_is_dropped(
    server: Server, helpers: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    threshold = {MODEL: {"kl_div": THRESHOLD}}
    helper = getattr(helpers, name)
    helper(server.url, threshold, MODEL, max_samples=server.num_prompts, max_new_tokens=server.new_tokens)
    assert divergences(capsys.readouterr().out) == [0.0] * server.num_prompts


@pytest.mark.parametrize("name", SINGLE_TURN)
def test_turns_that_branch_hit_the_deepest_checkpoint_and_do_not_diverge(
    server: Server, helpers: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Branches of one beginning, two further turns each; where a helper asks for exact hits, every one is."""
    prefixes, fulls = beginnings(server)
    turns = [[text(server, 20 + 8 * place, 100 * turn + place) for place in range(len(fulls))] for turn in (1, 2)]
    inputs: dict[str, Any] = {
        SINGLE_TURN[0]: {"input_ids": fulls},
        SINGLE_TURN[1]: {"prefix_input_ids": prefixes, "full_input_ids": fulls, "branches_per_group": BRANCHES},
        SINGLE_TURN[2]: {"first_turn_input_ids": fulls, "branches_per_group": BRANCHES},
    }[name]
    if name == SINGLE_TURN[1]:
        inputs["assert_prefill_cached_tokens"] = lambda result, prefix, label: hit(server, result, prefix, label)
    getattr(several_turns(helpers), name)(
        server.url,
        MODEL,
        THRESHOLD,
        **inputs,
        turn_suffixes=turns,
        max_new_tokens=server.new_tokens,
        assert_decode_cached_tokens=lambda result, history, output, label: hit(
            server, result, history + output - 1, label
        ),
    )
    assert divergences(capsys.readouterr().out) == [0.0] * (GROUPS * BRANCHES)


def hit(server: Server, result: Any, computed: int, label: str) -> None:
    """Of the tokens computed before, the cache has all whole intervals."""
    assert result["meta_info"]["cached_tokens"] == computed // server.interval * server.interval, label


def beginnings(server: Server) -> tuple[list[list[int]], list[list[int]]]:
    """Per branch: its group's beginning, and that with the branch's own ids behind it."""
    prefixes = [
        text(server, 2 * server.interval + 3 + group, group) for group in range(GROUPS) for _ in range(BRANCHES)
    ]
    own = [text(server, 40 + 64 * branch, 50 + branch) for _ in range(GROUPS) for branch in range(BRANCHES)]
    return prefixes, [prefix + more for prefix, more in zip(prefixes, own, strict=True)]


def text(server: Server, length: int, seed: int) -> list[int]:
    """Synthetic ids, as theirs; no special ones."""
    return [(7919 * seed + 31 * place * place + 17 * place) % 250 + 3 for place in range(length)]
