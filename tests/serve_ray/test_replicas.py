"""Two replicas on this machine: the same bits from both, and one that is killed under load loses nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.checkpoints.tiny import make_tiny_llama

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'zerokl[ray]'"),
]

TRIES = 8
PROMPTS = [[5 + (7 * i + 3 * place) % 250 for place in range(20 + 11 * i)] for i in range(12)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    for check in ("READY", "HEALTH"):  # of Ray's proxy: its limits are those of an idle machine
        os.environ.setdefault(f"RAY_SERVE_PROXY_{check}_CHECK_TIMEOUT_S", "120")
    import ray
    from ray import serve
    from ray.serve._private import api, client

    from zerokl.serve_ray import app

    api.HTTP_PROXY_TIMEOUT = client.HTTP_PROXY_TIMEOUT = 300
    folder = make_tiny_llama(tmp_path_factory.mktemp("ray") / "model", seed=3)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"port": 18765})
    options = {"model": str(folder), "replicas": 2, "max_total_tokens": 8192, "threads": 1, "log_level": "warning"}
    serve.run(app(options), name="zerokl")
    try:
        yield "http://127.0.0.1:18765"
    finally:
        serve.shutdown()
        ray.shutdown()


def ask(url: str, number: int, seed: int = 0) -> tuple[str, Any]:
    """(which replica, what it told) of a request that is sent again until it is answered whole."""
    sampling = {"max_new_tokens": 24, "temperature": 0.8, "sampling_seed": seed, "ignore_eos": True}
    body = {"input_ids": PROMPTS[number], "sampling_params": sampling, "return_logprob": True}
    for _ in range(TRIES):
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.post(url + "/generate", json=body, timeout=180)
            if answer.status_code == 200:
                told = answer.json()
                kept = told["output_ids"], told["meta_info"]["output_token_logprobs"]
                return answer.headers["x-zerokl-replica"], kept
            assert answer.status_code >= 500, answer.text
        time.sleep(0.5)
    raise AssertionError("a request was lost")


def processes(word: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if word in command and ") Z" not in (folder / "stat").read_text():
                found.append(int(folder.name))
    return found


def both(url: str) -> dict[str, dict[int, Any]]:
    """What each replica tells about the same prompts: asked so often at once that the router spares the favourite."""
    found: dict[str, dict[int, Any]] = {}
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        for number in range(2):
            with ThreadPoolExecutor(32) as pool:
                for answer in pool.map(lambda _, n=number: ask(url, n), range(32)):
                    found.setdefault(answer[0], {}).setdefault(number, answer[1])
                    assert found[answer[0]][number] == answer[1], "a replica repeats itself"
        common = [set(told) for told in found.values()]
        if len(common) == 2 and common[0] & common[1]:
            break
    return found


def test_both_replicas_give_the_same_bits(url: str) -> None:
    one, two = both(url).values()
    common = one.keys() & two.keys()
    assert common, "the router never spared its favourite"
    assert {n: one[n] for n in common} == {n: two[n] for n in common}
    prints = {httpx.get(url + "/server_info").json()["fingerprint"] for _ in range(8)}
    assert len(prints) == 1


def test_streams_pass_through_piece_by_piece(url: str) -> None:
    body = {"prompt": "the hand", "max_tokens": 6, "stream": True, "temperature": 0, "ignore_eos": True}
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=180) as answer:
        pieces = [piece for piece in answer.iter_raw() if piece]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert len(pieces) > 2
    assert b"".join(pieces).rstrip().endswith(b"data: [DONE]")
    assert httpx.get(url + "/no-such-path").status_code == 404


@pytest.mark.parametrize("kind", ["ServeReplica:zerokl:Replica", "zerokl.serve_ray.server"])
def test_a_replica_that_is_killed_under_load_loses_no_request_and_comes_back(url: str, kind: str) -> None:
    """The actor, or the server that is its child."""
    expected = {n: ask(url, n)[1] for n in range(len(PROMPTS))}
    victim, *others = processes(kind)
    assert len(others) == 1
    wrong: list[int] = []
    answered: list[int] = []

    def load(first: int) -> None:
        for turn in range(12):
            number = (first + 5 * turn) % len(PROMPTS)
            if ask(url, number)[1] != expected[number]:
                wrong.append(number)
            answered.append(number)

    threads = [threading.Thread(target=load, args=(first,)) for first in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    os.kill(victim, signal.SIGKILL)
    for thread in threads:
        thread.join(300)
    assert not wrong
    assert len(answered) == 6 * 12, "no request was lost"
    deadline = time.monotonic() + 120
    while len(processes("ServeReplica:zerokl:Replica")) != 2 or len(processes("zerokl.serve_ray.server")) != 2:
        assert time.monotonic() < deadline, "Ray starts another, and the dead one's server has ended"
        time.sleep(1)
