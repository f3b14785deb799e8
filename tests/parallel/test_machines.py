"""Ranks that torchrun started: they find each other, refuse others, give the same bits and end together."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from tests.checkpoints.tiny import make_tiny_llama
from tests.http.real import LAUNCHED, real_server
from tests.models.test_oracle_live import ORACLE
from tests.models.variants import tokens
from tests.parallel.teams import Threads, groups, told
from tests.parallel.test_invariance import alone, checkpoint_of
from zerokl import LLM
from zerokl.errors import ConfigError, EngineError
from zerokl.models import Team
from zerokl.parallel import machines
from zerokl.parallel.host_group import PeerGone
from zerokl.parallel.machines import Follower, Hello, Place, follow, lead, place_of
from zerokl.parallel.ranks import PEER_GONE, Ranks
from zerokl.parallel.tcp import TcpGroup

VARIABLES = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "head", "MASTER_PORT": "29500"}
EXTERNAL = ("--distributed-executor-backend", "external_launcher")
PATIENCE_S = 20.0
FAR = msgspec.msgpack.encode(Hello("", 2, 1, "channel", 80000))
FAR_PORT = len(FAR).to_bytes(4, "little") + FAR
"""A rank's first words, but for a port that can't be."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def place(rank: int, size: int, port: int, run: str = "") -> Place:
    return Place(rank, size, 0, 1, "127.0.0.1", port, run)


@contextlib.contextmanager
def met(size: int) -> Iterator[tuple[Ranks, list[Follower]]]:
    """Rank 0's side and the others', each found by a thread."""
    port = free_port()
    with ThreadPoolExecutor(size) as pool:
        leading = pool.submit(lead, place(0, size, port), 0, PATIENCE_S)
        others = [pool.submit(follow, place(rank, size, port), PATIENCE_S) for rank in range(1, size)]
        ranks, followers = leading.result(), [other.result() for other in others]
    yield ranks, followers
    ranks.close()
    for follower in followers:
        follower.channel.close()
        follower.group.close()
        follower.life.close()


def tcp_groups(size: int, slot_floats: int = 1 << 12) -> list[TcpGroup]:
    ends: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for one in range(size):
            for other in range(one):
                ends[one][other] = socket.create_connection(listener.getsockname())
                ends[other][one] = listener.accept()[0]
    return [TcpGroup(rank, peers, slot_floats=slot_floats) for rank, peers in enumerate(ends)]


@pytest.fixture(autouse=True)
def ends_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are threads of a test end when it does."""
    monkeypatch.setattr(machines, "END_S", 0.05)


# ---- the group


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["nine-heads", "vocabulary", "biases"])
def test_ranks_over_a_network_give_the_bits_of_one(name: str, ranks: int) -> None:
    checkpoint = checkpoint_of(name)
    vocabulary = checkpoint.config["vocab_size"]
    runner = Threads(checkpoint, ranks, 4, make_group=tcp_groups)
    try:
        assert told(runner, [tokens(90, vocabulary), tokens(23, vocabulary)], 6) == alone(name, 4)
    finally:
        runner.close()


def test_parts_larger_than_all_buffers_do_not_wait_for_each_other() -> None:
    """16 MB both ways at once: who only sends first waits for ever."""
    one, other = tcp_groups(2, slot_floats=1 << 22)
    parts = [np.full((1, 1 << 22), rank + 1, np.float32) for rank in range(2)]
    shapes = [part.shape for part in parts]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda i: (one, other)[i].gather(parts[i], shapes), range(2)))
    for gathered in found:
        assert all(np.array_equal(part, expected) for part, expected in zip(gathered, parts, strict=True))
    one.close()
    other.close()


def test_ranks_share_the_memory_of_their_machine_alone() -> None:
    one, other = tcp_groups(2)
    assert [Team(2, group).local_size for group in (None, one, *groups(2))] == [1, 1, 2, 2]
    one.close()
    other.close()


def test_a_peer_that_ends_is_seen_at_once() -> None:
    one, other = tcp_groups(2)
    other.close()
    with pytest.raises(PeerGone, match="rank 1 of 2 is gone"):
        one.gather(np.ones((1, 4), np.float32), [(1, 4), (1, 4)])
    one.close()


def test_a_group_that_another_thread_has_closed_is_a_peer_gone() -> None:
    one, other = tcp_groups(2)
    one.close()
    with pytest.raises(PeerGone):
        one.gather(np.ones((1, 4), np.float32), [(1, 4), (1, 4)])
    other.close()


def test_a_part_longer_than_a_slot_is_an_error() -> None:
    one, other = tcp_groups(2, slot_floats=4)
    other._peers[0].sendall((17).to_bytes(4, "little"))
    with pytest.raises(EngineError, match="rank 1 of 2 sends a part of 17 bytes"):
        one.gather(np.ones((1, 4), np.float32), [(1, 4), (1, 4)])
    one.close()
    other.close()


# ---- the meeting


def test_all_find_each_other_and_a_word_from_each_reaches_all() -> None:
    with met(4) as (ranks, followers), ThreadPoolExecutor(4) as pool:
        groups = [ranks.group, *(follower.group for follower in followers)]
        assert [group.rank for group in groups] == [0, 1, 2, 3]
        words = [np.full((1, 3), 10.0 + rank, np.float32) for rank in range(4)]
        found = list(pool.map(lambda i: groups[i].gather(words[i], [(1, 3)] * 4), range(4)))
        assert [[part[0, 0] for part in one] for one in found] == [[10, 11, 12, 13]] * 4


def test_an_end_in_order_is_told_from_a_failure() -> None:
    with met(3) as (ranks, [one, other]):
        ranks.close()
        assert (one.status(), other.status()) == (0, 0)
    with met(3) as (ranks, [one, other]):
        other.life.close()
        assert one.status(is_peer_gone=True) == PEER_GONE
        assert str(ranks.failure()) == "rank 2 of 3 on 127.0.0.1 is gone; its log says why"
    with met(2) as (ranks, [one]):
        ranks.close(in_order=False)
        assert one.status() == PEER_GONE


def test_rank_0_goes_on_when_the_others_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then what it shared with them can be given back."""
    monkeypatch.setattr(machines, "END_S", 20.0)
    with met(2) as (ranks, [one]):
        ended = []

        def end() -> None:
            assert one.status() == 0
            time.sleep(0.3)
            ended.append(True)
            one.life.close()

        follower = threading.Thread(target=end)
        follower.start()
        ranks.close()
        assert ended
        follower.join()


def test_whoever_is_ready_or_gone_first_is_heard_first() -> None:
    """A rank that waits for one that is gone says nothing."""
    with met(3) as (ranks, [one, other]):
        other.channel.answer(number=2)
        one.channel.answer(number=1)
        assert ranks.ready() == [{"number": 1}, {"number": 2}]
    with met(3) as (ranks, [one, other]), ThreadPoolExecutor(1) as pool:
        other.life.close()
        other.channel.close()
        with pytest.raises(EngineError, match=r"rank 2 of 3 on 127\.0\.0\.1 is gone"):
            pool.submit(ranks.ready).result(10)


def test_a_rank_beside_rank_0_is_found_by_those_on_other_machines() -> None:
    """/etc/hosts may give a machine's own name a loopback address."""
    with met(2) as (_, [one]):
        connection = one.life
        hello = machines.Met(Hello("", 2, 1, "channel"), connection)
        assert machines.host_seen_by_all(replace(place(0, 2, 1), host="head"), hello) == "head"


@pytest.mark.parametrize(
    ("hello", "text"),
    [
        ({"run": "another"}, "it is of run 'another', this is 'demo'"),
        ({"size": 8}, "it counts 8 ranks, rank 0 counts 2"),
        ({"rank": 5}, "rank 5 is here already, or isn't one of the group"),
        ({"role": "boss"}, "rank 1 is here already, or isn't one of the group"),
    ],
)
def test_who_is_not_wanted_is_told_why_and_nobody_else_is_hurt(hello: dict[str, Any], text: str) -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(lead, place(0, 2, port, "demo"), 0, PATIENCE_S)
        wrong = msgspec.structs.replace(Hello("demo", 2, 1, "channel"), **hello)
        connection = machines.connected("127.0.0.1", port, wrong, time.monotonic() + PATIENCE_S)
        assert machines.heard_on(connection, machines.Told, time.monotonic() + 5).error == text
        connection.close()
        follower = follow(place(1, 2, port, "demo"), PATIENCE_S)
        ranks: Ranks = leading.result()
        ranks.close()
        assert follower.status() == 0


@pytest.mark.parametrize(
    "junk", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\xff\xff\xff\xff", b"\x03\0\0\0abc", b"", FAR_PORT]
)
def test_what_is_no_rank_is_hung_up_on(junk: bytes) -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        leading: Future[Ranks] = pool.submit(lead, place(0, 2, port), 0, PATIENCE_S)
        with connection_to(port) as stranger:
            stranger.sendall(junk)
            with contextlib.suppress(ConnectionResetError):
                with contextlib.suppress(OSError):
                    stranger.shutdown(socket.SHUT_WR)  # it may have been hung up on already
                assert stranger.recv(10) == b""
        follower = follow(place(1, 2, port), PATIENCE_S)
        leading.result().close()
        assert follower.status() == 0


def connection_to(port: int) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 10)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_stranger_that_says_nothing_holds_the_others_up_for_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "HELLO_S", 0.3)
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        leading: Future[Ranks] = pool.submit(lead, place(0, 2, port), 0, PATIENCE_S)
        with connection_to(port):
            follower = follow(place(1, 2, port), PATIENCE_S)
            leading.result().close()
        assert follower.status() == 0


def test_ranks_that_do_not_come_are_named() -> None:
    with pytest.raises(ConfigError, match=r"ranks \[1, 2\] of 3 did not come in time"):
        lead(place(0, 3, free_port()), patience_s=0.2)
    with pytest.raises(ConfigError, match=r"nobody answers at 127\.0\.0\.1:"):
        follow(place(1, 2, free_port()), patience_s=0.2)


def test_nobody_listens_once_all_are_there() -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(lead, place(0, 2, port), 0, PATIENCE_S)
        follow(place(1, 2, port), PATIENCE_S)
        leading.result()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)


# ---- torchrun's variables


def test_the_variables_say_who_this_is() -> None:
    by_hand = Place(1, 4, 0, 1, "head", 29500)
    assert place_of(VARIABLES, 4) == by_hand
    more = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "demo"}
    more |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    expected = replace(by_hand, local_rank=1, local_size=2, run="demo", agent_has_port=True)
    assert place_of(VARIABLES | more, 4) == expected


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"RANK": None}, "the variable RANK is not set; start this with torchrun"),
        ({"MASTER_PORT": None}, "the variable MASTER_PORT is not set"),
        ({"MASTER_PORT": "80000"}, "MASTER_PORT is 80000, not 1 to 65535"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is 0, not 1 to 65535"),
        ({"RANK": "one"}, "RANK is 'one', not a number"),
        ({"RANK": "4"}, "RANK is 4, but WORLD_SIZE 4"),
        ({"WORLD_SIZE": "2"}, r"--tp 4: 2 processes were started \(WORLD_SIZE\)"),
    ],
)
def test_variables_that_do_not_go_are_named(change: dict[str, str | None], text: str) -> None:
    variables = {name: value for name, value in (VARIABLES | change).items() if value is not None}
    with pytest.raises(ConfigError, match=text):
        place_of(variables, 4)


# ---- servers


@contextlib.contextmanager
def other_rank(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, *LAUNCHED, str(folder), "--tp", "2", *EXTERNAL, "--threads", "1"]
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    process = subprocess.Popen(command, env=os.environ | environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", seed=5, num_attention_heads=4)


def answer(url: str) -> Any:
    body = {"input_ids": list(range(3, 60)), "return_logprob": True, "sampling_params": {"max_new_tokens": 12}}
    found = httpx.post(f"{url}/generate", json=body, timeout=60).raise_for_status().json()
    return found["output_ids"], found["meta_info"]["output_token_logprobs"], fingerprint_of(url)


def fingerprint_of(url: str) -> str:
    return str(httpx.get(f"{url}/server_info").json()["fingerprint"])


@pytest.mark.slow
def test_a_server_on_two_machines_answers_as_one_does_and_all_end_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines are two processes with torchrun's variables. A rank that dies ends the engine; a new one is met."""
    flags = (str(folder), "--tp", "2", "--max-total-tokens", "2048", "--threads", "1", "--log-level", "warning")
    with real_server(*LAUNCHED, *flags) as url:
        expected = answer(url)
    port = free_port()
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as others:
        first = others.enter_context(other_rank(folder, port))
        with real_server(*LAUNCHED, *flags, *EXTERNAL) as url:
            assert answer(url) == expected
            first.kill()
            wait_for_status(url, 503)
            second = others.enter_context(other_rank(folder, port))
            wait_for_status(url, 200)
            assert answer(url) == expected
        assert second.wait(30) == 0


def wait_for_status(url: str, status: int) -> None:
    deadline = time.monotonic() + 60
    while status_of(url) != status:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def status_of(url: str) -> int:
    """503 also where nobody listens, yet or for the moment."""
    try:
        return httpx.get(f"{url}/health").status_code
    except httpx.TransportError:
        return 503


@pytest.mark.slow
def test_ranks_with_other_weights_are_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_tiny_llama(tmp_path / "other", seed=6, num_attention_heads=4)
    port = free_port()
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    with other_rank(other, port) as process:
        with pytest.raises(ConfigError, match="ranks have different weights"):
            LLM(str(folder), tp=2, distributed_executor_backend="external_launcher", max_total_tokens=2048, threads=1)
        assert process.wait(30) == 1


@pytest.mark.oracle
def test_torchrun_starts_ranks_on_two_machines_and_starts_them_again(folder: Path) -> None:
    """Two agents are two machines, as far as torchrun can tell. Their environment has torch, ours the rest."""
    assert ORACLE.exists(), "make oracles installs torch and transformers"
    endpoint, port = f"127.0.0.1:{free_port()}", free_port()
    agent = [ORACLE, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "1"]
    agent += ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "demo", "-m", "zerokl", "serve"]
    flags = [str(folder), "--tp", "2", "--max-total-tokens", "2048", "--threads", "1"]
    with real_server(*LAUNCHED, *flags) as url:
        expected = answer(url)
    path = os.pathsep.join(place for place in sys.path if place)
    with contextlib.ExitStack() as both:
        for _ in range(2):
            command = [*agent, *flags, *EXTERNAL, "--port", str(port)]
            process = both.enter_context(
                subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, start_new_session=True)
            )
            both.callback(process.terminate)
        url = f"http://127.0.0.1:{port}"
        wait_for_status(url, 200)
        assert answer(url) == expected
        os.kill(follower_of(endpoint), signal.SIGKILL)
        wait_for_status(url, 503)
        wait_for_status(url, 200)
        assert answer(url) == expected


def follower_of(endpoint: str) -> int:
    """The process with RANK=1, whose agent was told to meet there."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            line = (entry / "cmdline").read_bytes()
            agents = b"torch.distributed.run" in line
            if b"RANK=1" in variables and f"{endpoint}".encode() in parent_line(entry) and not agents:
                return int(entry.name)
    raise AssertionError("no follower is there")


def parent_line(entry: Path) -> bytes:
    parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
    return Path(f"/proc/{parent}/cmdline").read_bytes()
