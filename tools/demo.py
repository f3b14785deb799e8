"""`make demo`: serve a real model on the CPU, generate a little, and prove that the server's bits don't move."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import httpx

ZEROKL = str(Path(sys.executable).parent / "zerokl")
PORT = 30900
URL = f"http://127.0.0.1:{PORT}"
READY_TIMEOUT_S = 600
"""The first start downloads the model."""


def main() -> int:
    print(f"$ zerokl serve --port {PORT}", flush=True)
    server = subprocess.Popen([ZEROKL, "serve", "--port", str(PORT)])
    try:
        wait_until_ready(server)
        run("generate", "--url", URL, "--max-new-tokens", "48", "Why is the sky blue? In one sentence:")
        return run("check", URL)
    finally:
        server.terminate()
        server.wait(timeout=30)


def wait_until_ready(server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with status {server.returncode} before it was ready")
        try:
            if httpx.get(f"{URL}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"the server was not ready after {READY_TIMEOUT_S} s")


def run(*arguments: str) -> int:
    print(f"\n$ zerokl {' '.join(arguments)}", flush=True)
    return subprocess.run([ZEROKL, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
