"""Requests and frames per second of our frontend and of FastAPI with pydantic models, on one fake engine, in turns.

    python benchmarks/http/compare.py [--seconds 3] [--rounds 4]

The engine and the client take their share of the machine, so the frontend's own CPU time per request is what is
compared; requests per second are shown beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CONNECTIONS = 32
SERVERS = {
    "zerokl": HERE / "our_frontend.py",
    "FastAPI, the same work": HERE / "fastapi_peer.py",
    "FastAPI, less work": HERE / "fastapi_plain.py",
}
PARAMS = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "ignore_eos": True, "sampling_seed": 1}
LOADS = {
    "request of one token": {"text": "hello", "sampling_params": {**PARAMS, "max_new_tokens": 1}},
    "stream of 64 tokens": {"text": "hello", "sampling_params": {**PARAMS, "max_new_tokens": 64}, "stream": True},
}


@contextlib.contextmanager
def process(*command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, *command], cwd=ROOT)
    try:
        yield started
    finally:
        started.terminate()
        started.wait()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(port: int, body: bytes, seconds: float) -> int:
    """Answers in that time, over connections that are kept."""
    head = (
        f"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    end = time.perf_counter() + seconds

    async def client() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        count = 0
        while time.perf_counter() < end:
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            lowered = answer.lower()
            if b"content-length:" in lowered:
                await reader.readexactly(int(lowered.split(b"content-length:")[1].split()[0]))
            else:
                await reader.readuntil(b"\r\n0\r\n\r\n")
            count += 1
        writer.close()
        return count

    return sum(await asyncio.gather(*(client() for _ in range(CONNECTIONS))))


def wait_for(port: int) -> None:
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.http.toy import write_toy_folder

    with tempfile.TemporaryDirectory(prefix="zk") as name, contextlib.ExitStack() as stack:
        folder = write_toy_folder(Path(name))
        engine = ["--socket", f"{name}/engine.sock", "--run-folder", name, "--max-running-requests", "256"]
        stack.enter_context(process("-m", "zerokl.engine.fake", *engine))
        while not (folder / "engine.sock").exists():
            time.sleep(0.05)
        ports = {server: free_port() for server in SERVERS}
        pids = {s: stack.enter_context(process(path, name, str(ports[s]))).pid for s, path in SERVERS.items()}
        for port in ports.values():
            wait_for(port)
        time.sleep(1)
        for title, request in LOADS.items():
            compare(title, json.dumps(request).encode(), ports, pids, options)


def compare(title: str, body: bytes, ports: dict[str, int], pids: dict[str, int], options: argparse.Namespace) -> None:
    rates: dict[str, list[float]] = {server: [] for server in ports}
    costs: dict[str, list[float]] = {server: [] for server in ports}
    for _ in range(options.rounds):
        for server, port in ports.items():
            before = cpu_s(pids[server])
            count = asyncio.run(load(port, body, options.seconds))
            rates[server].append(count / options.seconds)
            costs[server].append(1e6 * (cpu_s(pids[server]) - before) / count)
    print(f"{title}, {CONNECTIONS} connections, medians of {options.rounds} rounds of {options.seconds:g} s")
    for server in ports:
        rate, cost = statistics.median(rates[server]), statistics.median(costs[server])
        times = cost / statistics.median(costs["zerokl"])
        print(f"  {server:24} {rate:8.0f} a second {cost:8.0f} us CPU each {times:8.2f}x")
    print()


if __name__ == "__main__":
    main()
