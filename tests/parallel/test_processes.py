"""Ranks as processes: the same answers, and an end that is seen at once, whoever it was that ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.checkpoints.tiny import make_tiny_llama
from tests.http.live import wait_until
from tests.http.real import LAUNCHED, real_server
from zerokl import LLM
from zerokl.engine import build
from zerokl.errors import ConfigError, EngineError
from zerokl.parallel.ranks import PEER_GONE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SMALL = {"max_total_tokens": 2048, "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", seed=5, num_attention_heads=4)


def told(llm: LLM) -> Any:
    prompts = [list(range(3, 100)), list(range(7, 30))]
    return [repr(one) for one in llm.generate(prompts, max_new_tokens=12, logprobs=True, temperature=0.7)]


@contextlib.contextmanager
def ranks_of(folder: Path, ranks: int, **options: Any) -> Iterator[LLM]:
    llm = LLM(str(folder), tp=ranks, **{**SMALL, **options})
    try:
        yield llm
    finally:
        llm.close()


def processes(parent: int, word: str) -> list[int]:
    """Ids of a process's children whose command line holds the word."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            command = (status.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if f"PPid:\t{parent}\n" in status.read_text() and word in command:
                found.append(int(status.parent.name))
    return sorted(found)


def is_alive(process_id: int) -> bool:
    try:
        return ") Z" not in (Path("/proc") / str(process_id) / "stat").read_text()
    except OSError:
        return False


def own_ranks() -> list[int]:
    return [one for one in processes(os.getpid(), "zerokl.cli.rank") if is_alive(one)]


def test_processes_give_the_tokens_logprobs_and_fingerprint_of_one(folder: Path) -> None:
    with ranks_of(folder, 1, tp_leaves=2) as llm:
        expected = told(llm), llm.fingerprint
    with ranks_of(folder, 2, log_level="debug") as llm:  # plans are compared
        assert len(own_ranks()) == 1
        facts = json.loads(llm._built.hello.facts) if llm._built else {}
        assert (told(llm), llm.fingerprint) == expected
        [other] = facts["other_ranks"]
        assert 0 < other["weight_bytes"] < facts["weight_bytes"] * 1.2
    assert not own_ranks(), "closing ends them"


def test_a_rank_that_is_killed_ends_the_group_with_one_error(folder: Path) -> None:
    with ranks_of(folder, 4) as llm:
        told(llm)
        victim = own_ranks()[1]
        threading.Timer(0.3, os.kill, (victim, signal.SIGKILL)).start()
        began, error = time.monotonic(), until_it_fails(llm)
        assert time.monotonic() - began < 20
        assert "of 4 was ended by signal 9" in str(error)
        assert not own_ranks(), "the others are gone too"
        with pytest.raises(EngineError, match="failed before and can't be used any more"):
            told(llm)


def until_it_fails(llm: LLM) -> EngineError:
    while True:
        try:
            told(llm)
        except EngineError as error:
            return error


def test_a_rank_that_cannot_start_is_an_error_and_no_hang(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "RANK_MODULE", "tests.parallel.broken_rank")
    with pytest.raises(EngineError, match="rank 1 of 2 ended with status 3; its log says why"):
        LLM(str(folder), tp=2, **SMALL)
    assert not own_ranks()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tp": 3}, "--tp 3: .* a power of two"),
        ({"tp_leaves": 6}, "--tp-leaves 6: .* a power of two"),
        ({"tp": 4, "tp_leaves": 2}, "--tp 4 needs at least as many --tp-leaves, not 2"),
    ],
)
def test_numbers_that_do_not_go_are_refused(folder: Path, options: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        LLM(str(folder), **options, **SMALL)


@pytest.mark.slow
def test_under_load_a_dead_rank_is_an_error_frame_for_everybody_and_the_server_comes_back(folder: Path) -> None:
    flags = ("--tp", "2", "--max-total-tokens", "8192", "--log-level", "warning")
    with real_server(*LAUNCHED, str(folder), *flags) as url, httpx.Client(base_url=url, timeout=60) as client:
        body = {"input_ids": list(range(3, 60)), "sampling_params": {"max_new_tokens": 20, "ignore_eos": True}}
        expected = client.post("/generate", json=body).json()["output_ids"]
        ends: list[Any] = []

        def stream() -> None:
            long = {
                "input_ids": [5] * 40,
                "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True},
                "stream": True,
            }
            with httpx.Client(base_url=url, timeout=60) as own:
                lines = [line for line in own.post("/generate", json=long).text.splitlines() if line]
            ends.append((json.loads(lines[-2].removeprefix("data: ")), lines[-1]))

        streams = [threading.Thread(target=stream) for _ in range(3)]
        for one in streams:
            one.start()
        engine = running_engine()
        time.sleep(1.0)
        [rank] = processes(engine, "zerokl.cli.rank")
        os.kill(rank, signal.SIGKILL)
        for one in streams:
            one.join(30)
        assert len(ends) == 3, "nobody hangs"
        assert all("error" in frame and last == "data: [DONE]" for frame, last in ends), ends
        wait_until(lambda: running_engine() not in (0, engine) and client.get("/health").status_code == 200, 60)
        assert client.post("/generate", json=body).json()["output_ids"] == expected
        again = running_engine()
        [rank] = processes(again, "zerokl.cli.rank")
        os.kill(rank, signal.SIGKILL)  # nothing runs: it is noticed all the same
        wait_until(lambda: not is_alive(again), 30)
        last = []
        wait_until(lambda: last.append(client.get("/health").status_code) or last[-1] == 200, 60)


def running_engine() -> int:
    """The process id of the running engine of this test's server."""
    servers = processes(os.getpid(), "serve")
    engines = [one for server in servers for one in processes(server, "zerokl.cli.engine") if is_alive(one)]
    return engines[0] if engines else 0


@pytest.mark.slow
def test_ranks_end_when_rank_0_is_killed(folder: Path) -> None:
    with real_server(*LAUNCHED, str(folder), "--tp", "4", "--max-total-tokens", "2048") as url:
        assert httpx.get(url + "/health").status_code == 200
        [server] = processes(os.getpid(), "serve")
        [engine] = processes(server, "zerokl.cli.engine")
        ranks = processes(engine, "zerokl.cli.rank")
        assert len(ranks) == 3
        os.kill(engine, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, ranks)), 20)


def test_a_copy_of_the_sockets_in_a_forked_process_keeps_no_rank(folder: Path) -> None:
    with ranks_of(folder, 2) as llm:
        ranks = llm._parts.engine.runner.ranks
        copies = [os.dup(channel.fileno()) for channel in ranks._channels]
        copies += [os.dup(connection.fileno()) for connection in ranks.group._peers.values()]
        began = time.monotonic()
        llm.close()
        assert time.monotonic() - began < 3
    for copy in copies:
        os.close(copy)


WAITS_FOR_PLANS = """
import socket, sys
from zerokl.parallel.channel import Channel
from zerokl.runner.rank import Mailbox
Mailbox(Channel(socket.socket(fileno=int(sys.argv[1]))), lambda: int(sys.argv[2])).receive()
"""


@pytest.mark.parametrize("status", [0, PEER_GONE])
def test_a_rank_on_a_gpu_ends_as_the_last_word_of_rank_0_says(status: int) -> None:
    """torchrun starts ranks again that end with anything but 0."""
    own, theirs = socket.socketpair()
    with own, theirs:
        command = [sys.executable, "-c", WAITS_FOR_PLANS, str(theirs.fileno()), str(status)]
        rank = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    assert rank.wait(30) == status
