"""The real engine and model behind both frontends at once: who is asked, and who else is served, moves no bit."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import requests

from tests.http.live import CLOCK, wait_until
from tests.http.parity.exchanges import Answer, Case, exchanged
from tests.http.raw import Raw, connect
from tests.http.real import LAUNCHED
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=45, stage="base-b", runner_config="cpu-small")

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(600)]

NEIGHBOURS = 8
TEXT = "The lighthouse keeper wrote in his diary that the sea was"
GREEDY = {"temperature": 0, "max_new_tokens": 12}
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "sampling_seed": 11, "max_new_tokens": 12}
SCORES = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 3}
CASES = [
    Case("greedy, scored", "POST", "/generate", {"text": TEXT, "sampling_params": GREEDY} | SCORES),
    Case("sampled", "POST", "/generate", {"text": TEXT, "sampling_params": SAMPLED, "return_logprob": True}),
    Case("streamed", "POST", "/generate", {"text": TEXT, "sampling_params": SAMPLED, "stream": True}),
    Case("samples", "POST", "/v1/completions",
         {"prompt": TEXT, "n": 2, "max_tokens": 6, "seed": 3, "logprobs": 2, "echo": True}),
    Case("as SGLang's own parity test asks", "POST", "/v1/completions",
         {"model": "default", "prompt": TEXT, "temperature": 0, "max_tokens": 8, "logprobs": 5}),
    Case("chat", "POST", "/v1/chat/completions",
         {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 12, "logprobs": True, "top_logprobs": 2}),
    Case("chat, streamed", "POST", "/v1/chat/completions",
         {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 12, "seed": 5, "stream": True}),
]  # fmt: skip


@contextlib.contextmanager
def both_frontends(*flags: str) -> Iterator[tuple[str, str]]:
    """(Python's URL, Rust's) of one engine."""
    command = [sys.executable, *LAUNCHED, "--port", "0", "--frontend", "both", "--test-clock", str(CLOCK), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        line = process.stdout.readline()
        python, rust = re.findall(r"http://[\d.:]+", line)
        yield python, rust
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[str, str]]:
    with both_frontends() as found:
        yield found


@contextlib.contextmanager
def neighbours(url: str, count: int) -> Iterator[None]:
    """So many other requests are decoding for as long as this is entered."""
    body = {"sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}, "stream": True}
    raws = []
    for number in range(count):
        raw = connect(url)
        raw.send("POST", "/generate", json.dumps({"text": f"Neighbour {number} says: ", **body}).encode())
        raw.read_head()
        raw.chunk()
        raws.append(raw)
    readers = [threading.Thread(target=read_on, args=(raw,)) for raw in raws]
    for reader in readers:
        reader.start()
    try:
        yield
        wait_until(lambda: running(url) >= count)  # heartbeats tell it, a second later: they still decode
    finally:
        for raw in raws:
            raw.socket.shutdown(2)
        for reader in readers:
            reader.join()


def running(url: str) -> int:
    """Requests in the engine's batch."""
    figures = requests.get(url + "/metrics", timeout=10).text
    found = re.search(r"^zerokl:num_running_reqs\{.*\} (\d+)$", figures, re.MULTILINE)
    assert found, figures
    return int(found[1])


def read_on(raw: Raw) -> None:
    """Until the connection is shut."""
    with contextlib.suppress(AssertionError, OSError):
        while raw.socket.recv(65536):
            pass


def without_cache_state(answer: Answer) -> Answer:
    """cached_tokens tells what the cache held, which is no promise."""
    body = tuple(re.sub(r'"cached_tokens":\d+', '"cached_tokens":N', part) for part in answer.body)
    headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
    return Answer(answer.status, headers, body)


def asked(url: str, case: Case) -> Answer:
    return without_cache_state(exchanged(url, case))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_both_frontends_agree_with_the_engine_idle_for_one_and_busy_for_the_other(
    urls: tuple[str, str], case: Case
) -> None:
    python, rust = urls
    idle = asked(python, case)
    assert idle.status == 200
    assert asked(rust, case) == idle
    with neighbours(python, NEIGHBOURS):
        assert asked(rust, case) == idle
    with neighbours(rust, NEIGHBOURS):
        assert asked(python, case) == idle
        assert asked(rust, case) == idle
