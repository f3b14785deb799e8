"""The Python and the Rust frontend side by side on one fake engine: CPU, rates, waits, and memory under open streams.

    python benchmarks/http/frontends.py [--seconds 3] [--rounds 5] [--streams 1000]

The engine and the client (asyncio) share the machine and are the slower part, so the rates say little about a
frontend; its own CPU time says what it costs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from compare import CONNECTIONS, HERE, LOADS, ROOT, cpu_s, free_port, process, wait_for

SERVERS = {"python": HERE / "our_frontend.py", "rust": HERE / "rust_frontend.py"}
TOKENS = 64
"""Of a stream in LOADS; its frames."""
LONG = {"text": "hello", "stream": True, "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}


async def request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200"), head
    if b"content-length:" in head:
        await reader.readexactly(int(head.split(b"content-length:")[1].split()[0]))
    else:
        await reader.readuntil(b"\r\n0\r\n\r\n")


async def load(port: int, body: bytes, seconds: float) -> list[float]:
    """How long each answer took, over connections that are kept."""
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        while (began := time.perf_counter()) < end:
            await request(reader, writer, body)
            took.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return took


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def memory_mb(port: int, pid: int, streams: int) -> tuple[float, float]:
    """(before, with so many streams open and read)"""
    before = resident_mb(pid)
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(streams)]
    body = json.dumps(LONG).encode()
    for _, writer in opened:
        writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    readings = [asyncio.create_task(read_on(reader)) for reader, _ in opened]
    await asyncio.sleep(8)
    during = resident_mb(pid)
    for (_, writer), reading in zip(opened, readings, strict=True):
        reading.cancel()
        writer.close()
    await asyncio.sleep(2)
    return before, during


async def read_on(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=1000)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.http.toy import write_toy_folder

    from zerokl.cli.run_folder import write_config
    from zerokl.config import Config

    with tempfile.TemporaryDirectory(prefix="zk") as name, contextlib.ExitStack() as stack:
        folder = write_toy_folder(Path(name))
        write_config(folder, Config(model="toy"))
        engine = ["--socket", f"{name}/engine.sock", "--run-folder", name, "--max-running-requests", "256"]
        stack.enter_context(process("-m", "zerokl.engine.fake", *engine))
        while not (folder / "engine.sock").exists():
            time.sleep(0.05)
        ports = {server: free_port() for server in SERVERS}
        pids = {s: stack.enter_context(process(path, name, str(ports[s]))).pid for s, path in SERVERS.items()}
        for port in ports.values():
            wait_for(port)
        time.sleep(1)
        for title, body in LOADS.items():
            compare(title, json.dumps(body).encode(), ports, pids, options)
        for server, port in ports.items():
            before, during = asyncio.run(memory_mb(port, pids[server], options.streams))
            print(f"{server}: {before:.0f} MB, with {options.streams} open streams {during:.0f} MB")


def compare(title: str, body: bytes, ports: dict[str, int], pids: dict[str, int], options: argparse.Namespace) -> None:
    rates: dict[str, list[float]] = {server: [] for server in ports}
    costs: dict[str, list[float]] = {server: [] for server in ports}
    waits: dict[str, list[float]] = {server: [] for server in ports}
    for _ in range(options.rounds):
        for server, port in ports.items():
            before = cpu_s(pids[server])
            took = asyncio.run(load(port, body, options.seconds))
            rates[server].append(len(took) / options.seconds)
            costs[server].append(1e6 * (cpu_s(pids[server]) - before) / len(took))
            waits[server].append(1e3 * sorted(took)[int(0.99 * (len(took) - 1))])
    frames = TOKENS if "stream" in title else 1
    print(f"{title}, {CONNECTIONS} connections, medians of {options.rounds} rounds of {options.seconds:g} s")
    for server in ports:
        rate, cost, wait = (statistics.median(values[server]) for values in (rates, costs, waits))
        each = f"{cost / frames:7.1f} us CPU a frame, {rate * frames:8.0f} frames/s" if frames > 1 else ""
        print(f"  {server:8} {cost:8.0f} us CPU each {rate:8.0f} a second, p99 {wait:7.1f} ms {each}")
    ours, theirs = (statistics.median(costs[server]) for server in ("rust", "python"))
    print(f"  Rust's CPU is {ours / theirs:.3f} of Python's\n")


if __name__ == "__main__":
    main()
