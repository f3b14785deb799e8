"""What the supervisor promises: one ready line, restarts, errors that clients see, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.checkpoints.tiny import make_tiny_llama
from tests.cli.served import Served, served
from tests.http.live import wait_until
from zerokl.cli.supervisor import Child, Supervisor

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

LONG: dict[str, Any] = {"sampling_params": {"max_new_tokens": 2000, "ignore_eos": True}}


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
    except OSError:
        return False


def healthy(server: Served) -> bool:
    return server.client.get("/health").status_code == 200


def test_the_ready_line_says_where_and_what() -> None:
    with served() as server:
        line = next(line for line in server.output if "zerokl is ready" in line)
        assert str(server.client.base_url).rstrip("/") in line
        assert "model toy" in line
        assert "fingerprint fake" in line
        assert "cache 32768 tokens" in line
        assert server.generate().status_code == 200
    assert server.process.returncode == 0


def test_an_engine_that_is_killed_under_load_is_replaced_and_its_clients_are_told() -> None:
    with served("--step-ms", "5") as server:
        before = server.generate(sampling_params={"max_new_tokens": 8}).json()["output_ids"]
        for _ in range(3):
            with server.client.stream("POST", "/generate", json={"text": "hello", "stream": True, **LONG}) as stream:
                lines = stream.iter_lines()
                next(lines)
                server.kill("tests.cli.fake_engine")
                rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert '"code":"engine_down"' in rest[-2]
            assert server.generate().status_code in (200, 503)
            wait_until(lambda: healthy(server))
        assert server.generate(sampling_params={"max_new_tokens": 8}).json()["output_ids"] == before


def test_a_frontend_that_is_killed_is_replaced_and_the_engine_keeps_its_cache() -> None:
    with served() as server:
        body = {"text": "a prompt of more than a page " * 4, "sampling_params": {"max_new_tokens": 1}}
        assert server.client.post("/generate", json=body).json()["meta_info"]["cached_tokens"] == 0
        [engine] = server.children("tests.cli.fake_engine")
        [frontend] = server.children("zerokl.cli.frontend")
        server.kill("zerokl.cli.frontend")

        def answers() -> bool:
            try:
                return server.children("zerokl.cli.frontend") not in ([], [frontend]) and healthy(server)
            except httpx.TransportError:
                return False

        wait_until(answers)
        assert server.client.post("/generate", json=body).json()["meta_info"]["cached_tokens"] == 64
        assert server.children("tests.cli.fake_engine") == [engine]


def test_sigterm_lets_open_requests_end() -> None:
    with served("--step-ms", "5") as server:
        body = {"text": "hello", "stream": True, "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
        with server.client.stream("POST", "/generate", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"type":"length","length":100' in rest[-2]
        assert server.process.wait(20) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_supervisor(number: signal.Signals) -> None:
    with served() as server:
        children = server.children("python")
        assert len(children) == 2
        server.process.send_signal(number)
        server.process.wait(20)
        wait_until(lambda: not any(map(alive, children)))


def test_what_dies_before_it_works_again_is_started_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    sleeper, dying = (
        [sys.executable, "-c", "import time; time.sleep(60)"],
        [sys.executable, "-c", "raise SystemExit(3)"],
    )
    engine = Child("engine", sleeper)
    with Supervisor(engine, Child("frontend", sleeper)) as supervisor:
        waits: list[float] = []

        def wait(seconds: float) -> bool:
            waits.append(seconds)
            return len(waits) == 5

        monkeypatch.setattr(supervisor._ended, "wait", wait)
        answers = iter([True])
        engine.command = dying

        def break_engine() -> None:
            engine.signal(signal.SIGKILL)

        thread = threading.Thread(target=supervisor.watch, args=(lambda: next(answers, False), break_engine))
        thread.start()
        wait_until(lambda: len(waits) == 5)
        supervisor._take_signal(signal.SIGTERM, None)
        thread.join(10)
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2]


def test_a_port_in_use_is_one_line() -> None:
    with served() as server:
        port = str(server.client.base_url.port)
        result = subprocess.run(
            [sys.executable, "-c", "from zerokl.cli import main; main()", "serve", "--port", port],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert f"Error: can't listen on 127.0.0.1:{port}: Address already in use" in result.stderr


def test_an_engine_that_never_worked_is_not_started_again(tmp_path: Path) -> None:
    model = str(make_tiny_llama(tmp_path / "model", seed=0))
    options = ["serve", model, "--port", "0", "--device", "cuda"]
    command = [sys.executable, "-c", "from zerokl.cli import main; main()", *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "the engine ended with status 1 before the server was ready" in result.stderr


def test_an_engine_that_fails_at_its_start_is_seen_while_a_frontend_does_not_answer_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    dying, sleeper = (
        [sys.executable, "-c", "raise SystemExit(3)"],
        [sys.executable, "-c", "import time; time.sleep(60)"],
    )
    asked = threading.Event()
    with Supervisor(Child("engine", dying), Child("frontend", sleeper)) as supervisor:
        began = time.monotonic()
        assert supervisor.watch(is_ready=lambda: asked.wait(30), on_ready=lambda: None) == 1
        assert time.monotonic() - began < 10
        asked.set()
