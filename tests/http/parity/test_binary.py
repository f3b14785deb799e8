"""The frontend as a program of its own, as `cargo run -p zerokl-http` starts it: the same bytes, ended by a signal."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.http.live import live_each, wait_until
from tests.http.parity.exchanges import Case, exchanged
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=15, stage="base-b", runner_config="cpu-small")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("cargo") is None, reason="needs cargo"),
]

ROOT = Path(__file__).parents[3]
PARAMS = {"max_new_tokens": 8, "temperature": 0}
CASES = [
    Case("one answer", "POST", "/generate", {"text": "hello", "sampling_params": PARAMS}),
    Case("a stream", "POST", "/v1/completions", {"prompt": "hello", "max_tokens": 8, "temperature": 0, "stream": True}),
    Case("an error", "POST", "/generate", b"{"),
]


@pytest.fixture(scope="module")
def program() -> Path:
    """Named beside the module, its libraries have the features that the module's have: only the program is built."""
    packages = ["-p", "zerokl-py", "-p", "zerokl-http", "--bin", "zerokl-http"]
    subprocess.run(["cargo", "build", "--release", "--quiet", *packages], cwd=ROOT, check=True)
    return ROOT / "target" / "release" / "zerokl-http"


def test_the_program_answers_as_both_frontends_do_and_ends_by_a_signal(program: Path) -> None:
    with live_each(("python", "rust"), engine={"disable_radix_cache": True}) as servers:
        process = subprocess.Popen([program, servers[0].folder, "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr
            url = process.stderr.readline().split()[-1]
            wait_until(lambda: exchanged(url, Case("is it there", "GET", "/health")).status == 200)
            for case in CASES:
                answers = [exchanged(one, case) for one in (url, *(server.url for server in servers))]
                assert answers[1:] == answers[:1] * 2
        finally:
            process.terminate()
        assert process.wait(20) == 0


def test_what_is_missing_is_one_line(program: Path, tmp_path: Path) -> None:
    done = subprocess.run([program, tmp_path, "127.0.0.1:0"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert "config.json" in done.stderr.splitlines()[-1]
    assert subprocess.run([program], capture_output=True, timeout=20).returncode == 2
