"""An engine killed again and again under load: every request ends in something its client sees, and no bit moves."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.cli.served import Served, served
from tests.http.live import wait_until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

KILLS = 20
CLIENTS = 12


def ask(client: httpx.Client, number: int, stream: bool) -> tuple[str, list[int]]:
    """(how it ended, the tokens that came)"""
    params = {"max_new_tokens": 30, "ignore_eos": True, "sampling_seed": number}
    body: dict[str, Any] = {"text": f"prompt {number % 40}", "sampling_params": params, "stream": stream}
    response = client.post("/generate", json=body)
    if response.status_code != 200:
        return response.json()["error"]["code"], []
    if not stream:
        return "whole", response.json()["output_ids"]
    frames = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert frames[-1] == "[DONE]", "a stream ended without its end"
    last = json.loads(frames[-2])
    if "error" not in last:
        return "whole", last["output_ids"]
    return last["error"]["code"], json.loads(frames[-3])["output_ids"] if len(frames) > 2 else []


def test_an_engine_killed_twenty_times_under_load() -> None:
    with served("--step-ms", "4") as server:
        reference = {number: ask(server.client, number, False)[1] for number in range(40)}
        endings, ended = Counter[str](), threading.Event()

        def client(first: int) -> None:
            with httpx.Client(base_url=server.client.base_url, timeout=30) as own:
                number = first
                while not ended.is_set():
                    number = (number + 7) % 40
                    how, tokens = ask(own, number, stream=number % 2 == 0)
                    assert tokens == reference[number][: len(tokens)], "an ending changed a bit of what came before"
                    assert len(tokens) == 30 or how != "whole"
                    endings[how] += 1
                    if how != "whole":
                        time.sleep(0.02)

        with ThreadPoolExecutor(CLIENTS) as clients:
            running = [clients.submit(client, first) for first in range(CLIENTS)]
            try:
                for _ in range(KILLS):
                    kill_engine(server, endings)
            finally:
                ended.set()
            for one in running:
                one.result(60)
        assert set(endings) <= {"whole", "engine_down", "starting"}
        assert endings["engine_down"] > 0
        wait_until(lambda: server.client.get("/health").status_code == 200, timeout_s=60)
        assert {number: ask(server.client, number, False)[1] for number in range(40)} == reference


def kill_engine(server: Served, endings: Counter[str]) -> None:
    """Once it works for everybody again."""
    whole = endings["whole"]
    wait_until(lambda: endings["whole"] > whole + CLIENTS, timeout_s=60)
    [engine] = server.children("tests.cli.fake_engine")
    server.kill("tests.cli.fake_engine")
    wait_until(lambda: server.children("tests.cli.fake_engine") not in ([], [engine]), timeout_s=30)
