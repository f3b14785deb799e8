"""Two machines with a GPU each, as NCCL sees it: two processes on one GPU, which are told that they are elsewhere.

So parts go through sockets and NCCL's all-gather, in graphs too, as they would between machines.
"""

from __future__ import annotations

import contextlib
import os
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
from tests.gpu.ranks import HEADS, PROMPTS, SHAPE, SHARED_GPUS, ranks_of, told
from tests.http.real import LAUNCHED, real_server
from tests.parallel.test_machines import EXTERNAL, fingerprint_of, free_port, wait_for_status
from zerokl.errors import EngineError
from zerokl.runner.graphs import Graphs
from zerokl.suites import register_cuda_ci

register_cuda_ci(est_time=130, stage="extra-b", runner_config="1-gpu-small")

pytestmark = [pytest.mark.device, pytest.mark.timeout(300), SHARED_GPUS]

FLAGS = ("--device", "cuda", "--max-total-tokens", "16384", "--chunked-prefill-size", "256")
LEAVES = ("--tp-leaves", "2")
EAGER = ("--disable-cuda-graph", "--disable-prefill-cuda-graph")


def variables(rank: int, port: int) -> dict[str, str]:
    """torchrun's, and what parts two machines for NCCL."""
    of_torchrun = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    of_nccl = {"NCCL_HOSTID": f"machine-{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    return of_torchrun | of_nccl


@contextlib.contextmanager
def other_machine(folder: Path, port: int, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, *LAUNCHED, str(folder), *FLAGS, *more, "--tp", "2", *EXTERNAL]
    process = subprocess.Popen(command, env=os.environ | variables(1, port))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> Any:
    """Prompts' and answers' logprobs, greedy and drawn by the device and by the host, and the fingerprint."""
    found: list[Any] = [fingerprint_of(url)]
    for way in ({"temperature": 0}, {"temperature": 0.8}, {"temperature": 0.8, "top_k": 20}):
        sampling = {"max_new_tokens": 24, "ignore_eos": True, "sampling_seed": 7} | way
        body = {"input_ids": PROMPTS, "return_logprob": True, "logprob_start_len": 0, "sampling_params": sampling}
        for one in httpx.post(f"{url}/generate", json=body, timeout=120).raise_for_status().json():
            told = one["meta_info"]
            found.append((one["output_ids"], told["input_token_logprobs"], told["output_token_logprobs"]))
    return found


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Where rank 0 is found, which this process and its children are."""
    found = free_port()
    for variable, value in variables(0, found).items():
        monkeypatch.setenv(variable, value)
    return found


@pytest.mark.parametrize(("name", "more"), [("even", ()), ("uneven", EAGER)])
def test_gpus_of_two_machines_give_the_bits_of_one_and_end_together(
    tmp_path: Path, port: int, name: str, more: tuple[str, ...]
) -> None:
    """With graphs and without. A machine that is lost ends the engine; a new one is met."""
    folder = make_tiny_llama(tmp_path / name, seed=5, **SHAPE, **HEADS[name])
    with real_server(*LAUNCHED, str(folder), *FLAGS, *LEAVES, *more) as url:
        expected = answers(url)
    with contextlib.ExitStack() as others:
        first = others.enter_context(other_machine(folder, port, *more))
        with real_server(*LAUNCHED, str(folder), *FLAGS, *more, "--tp", "2", *EXTERNAL) as url:
            assert answers(url) == expected
            first.kill()
            wait_for_status(url, 503)
            second = others.enter_context(other_machine(folder, port, *more))
            wait_for_status(url, 200)
            assert answers(url) == expected
        assert second.wait(30) == 0


@pytest.mark.parametrize("more", [{}, {"disable_cuda_graph": True, "disable_prefill_cuda_graph": True}])
def test_a_machine_that_is_lost_is_one_error_and_the_process_goes_on(
    tmp_path: Path, port: int, more: dict[str, Any]
) -> None:
    """This process may be a trainer's: it makes another engine, with the same bits."""
    folder = make_tiny_llama(tmp_path / "even", seed=5, **SHAPE, **HEADS["even"])
    more = more | {"distributed_executor_backend": "external_launcher"}
    with other_machine(folder, port) as victim, ranks_of(tmp_path, "even", 2, 2, **more) as llm:
        assert llm._parts.engine.runner._group.way == "gather"
        expected = told(llm)
        threading.Timer(0.3, victim.kill).start()
        began, error = time.monotonic(), ""
        while not error and time.monotonic() - began < 60:
            try:
                assert told(llm) == expected
            except EngineError as found:
                error = str(found)
        assert "rank 1 of 2 on 127.0.0.1 is gone" in error
        assert time.monotonic() - began < 20
        llm.close()
        assert time.monotonic() - began < 25
    with other_machine(folder, port) as other:
        with ranks_of(tmp_path, "even", 2, 2, **more) as llm:
            assert told(llm) == expected
        assert other.wait(30) == 0


def test_a_machine_that_is_lost_while_graphs_are_captured_is_one_error(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny_llama(tmp_path / "even", seed=5, **SHAPE, **HEADS["even"])
    more = {"distributed_executor_backend": "external_launcher"}
    capture, captured = Graphs.capture, []
    with other_machine(folder, port) as victim:

        def killing(self, key, *arguments, **more):  # type: ignore[no-untyped-def]
            captured.append(key)
            if len(captured) == 3:
                victim.kill()
            return capture(self, key, *arguments, **more)

        began = time.monotonic()
        with monkeypatch.context() as patch:
            patch.setattr(Graphs, "capture", killing)
            with pytest.raises(EngineError, match=r"rank 1 of 2 on 127\.0\.0\.1 is gone"):
                ranks_of(tmp_path, "even", 2, 2, **more)
        assert time.monotonic() - began < 60
    with other_machine(folder, port), ranks_of(tmp_path, "even", 2, 2, **more) as llm:
        assert told(llm)
