"""How a server with the Rust frontend starts, drains and ends, and when it refuses to start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from tests.cli.served import served
from tests.http.live import CLOCK, Live, live_each, wait_until
from tests.http.parity.exchanges import Case, exchanged
from tests.http.raw import posted
from tests.http.real import LAUNCHED
from tests.http.toy import toy_files, write_toy_folder
from zerokl._native import HttpServer
from zerokl.cli.fronts import listening
from zerokl.cli.run_folder import write_config
from zerokl.config import Config, chosen_frontend
from zerokl.errors import ConfigError
from zerokl.tokenizer import Tokenizer
from zerokl.tokenizer.battery import BATTERY, conversations, write_battery
from zerokl.types import TokenizerFiles

pytestmark = pytest.mark.slow

SLOW = {"step_ms": 10.0}
LONG = {"text": "hello", "sampling_params": {"max_new_tokens": 30, "ignore_eos": True, "temperature": 0}}


def rust_server(folder: Path) -> HttpServer:
    return HttpServer(str(folder), socket.create_server(("127.0.0.1", 0)).detach())


def with_template(folder: Path, template: str) -> Path:
    files = toy_files()
    write_toy_folder(folder)
    (folder / "chat_template.jinja").write_text(template)
    write_config(folder, Config(model="toy", test_clock=CLOCK))
    write_battery(folder, Tokenizer(TokenizerFiles(files.tokenizer_json, files.special, template)))
    return folder


def test_both_frontends_serve_one_engine_as_processes() -> None:
    with served(frontend="both") as running:
        line = next(line for line in running.output if "zerokl is ready" in line)
        rust = line.split(" and ")[1].split()[0]
        body = {**LONG, "rid": "x"}
        answers = [httpx.post(f"{url}/generate", json=body).json() for url in (str(running.client.base_url), rust)]
        assert answers[0]["text"] == answers[1]["text"]
        assert httpx.get(f"{rust}/server_info").json()["frontend"] == "rust"


def test_sglangs_variable_starts_the_rust_frontend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROKL_RUST_SERVER", "1")
    with served(frontend="auto") as running:
        assert running.client.get("/server_info").json()["frontend"] == "rust"
        assert running.generate().status_code == 200


def test_the_rust_frontend_is_started_again_when_it_is_killed() -> None:
    with served(frontend="rust") as running:
        assert running.generate().status_code == 200
        running.kill("cli.frontend")
        running.read_until("starting it again")
        wait_until(lambda: healthy(running.client), timeout_s=20)
        assert running.generate().status_code == 200


def healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


def test_a_signal_lets_open_streams_end_and_takes_no_new_ones() -> None:
    with served("--step-ms", "20", frontend="rust") as running:
        url = str(running.client.base_url)
        raw = posted(url, "/generate", {**LONG, "stream": True})
        os.kill(running.process.pid, signal.SIGTERM)
        chunks = raw.chunks()
        assert len(chunks) == 31
        assert chunks[-1] == b"data: [DONE]\n\n"
        assert running.process.wait(20) == 0


def test_before_the_engine_is_there_both_say_starting(tmp_path: Path) -> None:
    write_toy_folder(tmp_path)
    write_config(tmp_path, Config(model="toy", test_clock=CLOCK))
    server = HttpServer(str(tmp_path), (listener := socket.create_server(("127.0.0.1", 0))).fileno())
    port = listener.getsockname()[1]
    listener.detach()
    thread = threading.Thread(target=lambda: server.run(signals=False))
    thread.start()
    try:
        answer = exchanged(f"http://127.0.0.1:{port}", Case("no engine", "GET", "/health"))
        assert answer.status == 503
        assert json.loads(answer.body[0])["error"] == {
            "message": "the engine is starting",
            "type": "server_error",
            "param": None,
            "code": "starting",
        }
        assert "x-zerokl-fingerprint" not in answer.headers
    finally:
        server.stop()
        thread.join()


def test_a_template_that_minijinja_renders_otherwise_refuses_to_start_and_is_shown(tmp_path: Path) -> None:
    folder = with_template(tmp_path, "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}")
    battery = json.loads((folder / BATTERY).read_text())
    battery[2]["text"] = "something else"
    (folder / BATTERY).write_text(json.dumps(battery))
    with pytest.raises(RuntimeError) as error:
        rust_server(folder).run(signals=False)
    said = str(error.value)
    assert said.startswith("the chat template of toy can't be served by the Rust frontend: conversation 2 of ")
    assert '[{"role":"system","content":"Be brief."}' in said
    assert 'jinja2 makes "something else" of it, and minijinja "system' in said
    assert said.endswith("Use --frontend python")


def test_other_ids_for_the_same_text_refuse_to_start(tmp_path: Path) -> None:
    folder = with_template(tmp_path, "{{ messages[0].content }}")
    battery = json.loads((folder / BATTERY).read_text())
    battery[0]["ids"][0] += 1
    (folder / BATTERY).write_text(json.dumps(battery))
    with pytest.raises(RuntimeError, match="the tokenizer makes other ids of it than the engine's did"):
        rust_server(folder).run(signals=False)


def test_a_template_that_only_jinja2_can_render_refuses_to_start(tmp_path: Path) -> None:
    folder = with_template(tmp_path, "{{ '%.2f' % 0.5 }}{{ messages[0].content }}")
    with pytest.raises(RuntimeError, match="the chat template of toy can't be served"):
        rust_server(folder).run(signals=False)


def test_a_generator_that_jinja2_can_not_print_refuses_to_start(tmp_path: Path) -> None:
    """The one of llama.cpp's 70 templates on which the two differ does this: minijinja's filters make lists."""
    folder = with_template(tmp_path, "{{ messages | map(attribute='role') | tojson }}")
    with pytest.raises(RuntimeError, match="jinja2 makes an error of it, and minijinja"):
        rust_server(folder).run(signals=False)


@pytest.mark.model
def test_the_launcher_says_why_and_ends(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ '%.2f' % 0.5 }}{{ messages[0].content }}")
    command = [sys.executable, *LAUNCHED, "--port", "0", "--frontend", "rust", "--chat-template", str(template)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stderr
    assert "the chat template of HuggingFaceTB/SmolLM2-135M-Instruct can't be served by the Rust" in done.stderr
    assert "ready" not in done.stdout


def test_the_battery_has_forty_conversations() -> None:
    assert len(list(conversations())) >= 40


def test_a_run_folder_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"config\.json"):
        rust_server(tmp_path).run(signals=False)


def test_which_frontend_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZEROKL_RUST_SERVER", raising=False)
    assert chosen_frontend(Config()) == "python"
    monkeypatch.setenv("ZEROKL_RUST_SERVER", "1")
    assert chosen_frontend(Config()) == "rust"
    assert chosen_frontend(Config(frontend="python")) == "python"
    assert chosen_frontend(Config(frontend="both")) == "both"


def test_both_need_two_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="can't listen"):
            listening(Config(frontend="both", port=port - 1))


def server_info(server: Live) -> dict[str, object]:
    info: dict[str, object] = server.client.get("/server_info").json()
    return info


def test_server_info_differs_in_the_frontends_name_alone() -> None:
    with live_each(("python", "rust"), api_key=(), tool_call_parser="hermes") as [python, rust]:
        infos = [server_info(one) for one in (python, rust)]
    assert list(infos[0]) == list(infos[1])
    different = {name for name in infos[0] if infos[0][name] != infos[1][name]}
    assert different <= {"frontend", "internal_states"}
    assert [info["frontend"] for info in infos] == ["python", "rust"]


def test_metrics_have_the_same_names_labels_and_words() -> None:
    with live_each(("python", "rust")) as servers:
        texts = []
        for one in servers:
            one.generate(**LONG)
            one.client.get("/nope")
            texts.append(one.client.get("/metrics").text)
    waited = 'path="/health"'  # how often a start was asked whether it is over differs from start to start
    python, rust = ([line.rpartition(" ")[0] for line in text.splitlines() if waited not in line] for text in texts)
    assert rust == python
