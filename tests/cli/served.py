"""A whole server as processes: supervisor, frontend and, in place of the real engine, the fake one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

SCRIPT = """
import sys
from pathlib import Path
from tests.http.toy import write_toy_folder
from zerokl.cli.process import set_up_logs
from zerokl.cli.run_folder import new_run_folder, write_config
from zerokl.cli.fronts import listening
from zerokl.cli.serve import supervised, watch
from zerokl.tokenizer import Tokenizer
from zerokl.tokenizer.battery import write_battery
from zerokl.config import Config

set_up_logs("zerokl", "info")
config = Config(model="toy", served_model_name="toy", port=0, frontend=sys.argv.pop(1))
fronts = listening(config)
print("port", fronts[0].address[1], flush=True)
with new_run_folder() as name:
    folder = Path(name)
    with supervised(folder, fronts, "tests.cli.fake_engine", *sys.argv[1:]) as supervisor:
        write_toy_folder(folder)
        write_battery(folder, Tokenizer.load(folder))
        write_config(folder, config)
        sys.exit(watch(supervisor, fronts, config))
"""


@dataclass(slots=True)
class Served:
    process: subprocess.Popen[str]
    client: httpx.Client
    output: list[str] = field(default_factory=list)

    def children(self, word: str) -> list[int]:
        """Ids of this server's processes whose command line holds the word."""
        found = []
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                command = (status.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if f"PPid:\t{self.process.pid}\n" in status.read_text() and word in command:
                    found.append(int(status.parent.name))
        return found

    def read_until(self, text: str, timeout_s: float = 20) -> str:
        """The first line of output that holds the text."""
        deadline = time.monotonic() + timeout_s
        assert self.process.stdout
        while time.monotonic() < deadline:
            line = self.process.stdout.readline()
            self.output.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} was not said: {self.output}")

    def generate(self, **body: Any) -> httpx.Response:
        return self.client.post("/generate", json={"text": "hello", **body})

    def kill(self, word: str) -> None:
        for pid in self.children(word):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def served(*engine_arguments: str, frontend: str = "python") -> Iterator[Served]:
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, frontend, *engine_arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=root,
    )
    assert process.stdout
    port = int(process.stdout.readline().split()[1])
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        running = Served(process, client)
        try:
            running.read_until("zerokl is ready")
            yield running
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()
