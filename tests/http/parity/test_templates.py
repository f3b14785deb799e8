"""The chat templates that llama.cpp collects from models, where its sources are: minijinja is jinja2, or refuses."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from tests.http.live import wait_until
from tests.http.parity.exchanges import Case, exchanged
from tests.http.parity.test_starting import with_template
from zerokl._native import HttpServer
from zerokl.checkpoints.cache_folder import cache_folder
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=120, stage="nightly", runner_config="cpu-small", nightly=True)

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

TEMPLATES = sorted((cache_folder() / "llama.cpp" / "dl").glob("*/vendor/llama.cpp/models/templates/*.jinja"))


def why_refused(folder: Path) -> str:
    """What a start with this run folder says; "" if the server answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = HttpServer(str(folder), listener.detach())
    said: list[str] = []

    def run() -> None:
        try:
            server.run(signals=False)
        except RuntimeError as error:
            said.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: not thread.is_alive() or answers(port))
    server.stop()
    thread.join()
    return "".join(said)


def answers(port: int) -> bool:
    try:
        return exchanged(f"http://127.0.0.1:{port}", Case("is it there", "GET", "/health")).status == 503
    except (OSError, AssertionError):
        return False


@pytest.mark.skipif(not TEMPLATES, reason="needs llama.cpp's sources: make bench")
def test_of_llama_cpps_templates_all_but_one_are_served_and_that_one_says_why(tmp_path: Path) -> None:
    refused = {}
    for path in TEMPLATES:
        folder = tmp_path / path.stem
        folder.mkdir()
        if why := why_refused(with_template(folder, path.read_text())):
            refused[path.stem] = why
    assert len(refused) <= 1, refused
    for why in refused.values():
        assert why.startswith("the chat template of toy can't be served by the Rust frontend: conversation ")
        assert why.endswith("Use --frontend python")
