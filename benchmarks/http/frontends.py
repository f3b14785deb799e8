"""The Python and the Rust frontend side by side on one engine that takes no CPU: CPU, rates, waits, and memory.

    python benchmarks/http/frontends.py [--seconds 5] [--rounds 5] [--streams 1000]

The engine (crates/zerokl-wire/examples/fake_engine.rs) and the client (wrk, which has to be installed) are native, so
most of what the machine does is the frontend's. Its own CPU time, user and system, is what an answer costs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from compare import CONNECTIONS, HERE, LOADS, ROOT, cpu_s, free_port, process, wait_for

SERVERS = {"python": HERE / "our_frontend.py", "rust": HERE / "rust_frontend.py"}
TOKENS = 64
"""Of a stream in LOADS; its frames."""
CHAT = {
    "messages": [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "hello"}],
    "temperature": 0.7, "top_p": 0.9, "seed": 1, "max_tokens": 1,
}  # fmt: skip
PATHS = {title: ("/generate", body) for title, body in LOADS.items()} | {
    "chat of one token": ("/v1/chat/completions", CHAT)
}
LONG = {"text": "hello", "stream": True, "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}
CROWD_STEP_MS = "50"
OPEN_S = 8
"""How long the streams of the memory's measurement stay open."""
ENGINE = ROOT / "target" / "release" / "examples" / "fake_engine"
UNITS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}


@dataclass
class Figures:
    """Of one frontend under one load, one value per round."""

    cost_us: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=1000)
    options = parser.parse_args()
    if not shutil.which("wrk"):
        raise SystemExit("wrk has to be installed (Debian: apt install wrk)")
    build = ["cargo", "build", "--release", "--quiet", "-p", "zerokl-wire", "--example", "fake_engine"]
    subprocess.run(build, cwd=ROOT, check=True)
    with frontends() as (ports, pids):
        for title, (path, body) in PATHS.items():
            urls = {server: f"http://127.0.0.1:{port}{path}" for server, port in ports.items()}
            compare(title, json.dumps(body), urls, pids, options)
    with frontends(CROWD_STEP_MS) as (ports, pids):
        for server, port in ports.items():
            before, during = memory_mb(port, pids[server], options.streams)
            print(f"{server}: {before:.0f} MB, with {options.streams} open streams {during:.0f} MB")


@contextlib.contextmanager
def frontends(step_ms: str = "0") -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """(ports, process ids) of both, on one engine."""
    sys.path.insert(0, str(ROOT))
    from tests.http.toy import VOCAB, write_toy_folder

    from zerokl.cli.run_folder import write_config
    from zerokl.config import Config

    with tempfile.TemporaryDirectory(prefix="zk") as name, contextlib.ExitStack() as stack:
        folder = write_toy_folder(Path(name))
        write_config(folder, Config(model="toy"))
        engine = subprocess.Popen([ENGINE, folder / "engine.sock", str(VOCAB), step_ms])
        stack.callback(engine.wait)
        stack.callback(engine.kill)
        ports = {server: free_port() for server in SERVERS}
        pids = {s: stack.enter_context(process(path, name, str(ports[s]))).pid for s, path in SERVERS.items()}
        for port in ports.values():
            wait_for(port)
        time.sleep(1)
        yield ports, pids


def compare(title: str, body: str, urls: dict[str, str], pids: dict[str, int], options: argparse.Namespace) -> None:
    figures = {server: Figures() for server in urls}
    for _ in range(options.rounds):
        for server, url in urls.items():
            measure(figures[server], url, pids[server], body, options.seconds)
    frames = TOKENS if "stream" in title else 1
    print(f"{title}, {CONNECTIONS} connections, medians of {options.rounds} rounds of {options.seconds} s")
    for server, one in figures.items():
        cost, rate, p50, p99 = map(statistics.median, (one.cost_us, one.rate, one.p50_ms, one.p99_ms))
        each = f"{cost / frames:6.2f} us CPU a frame, {rate * frames:8.0f} frames/s" if frames > 1 else ""
        print(f"  {server:8} {cost:7.1f} us CPU each {rate:8.0f} a second, p50 {p50:.2f} p99 {p99:.2f} ms {each}")
    ours, theirs = (statistics.median(figures[server].cost_us) for server in ("rust", "python"))
    print(f"  Rust's CPU is {ours / theirs:.3f} of Python's\n", flush=True)


def measure(into: Figures, url: str, pid: int, body: str, seconds: int) -> None:
    before = cpu_s(pid)
    said = finished(loaded(url, body, CONNECTIONS, seconds))
    count = int(re.search(r"(\d+) requests in", said)[1])  # type: ignore[index]
    into.cost_us.append(1e6 * (cpu_s(pid) - before) / count)
    into.rate.append(float(re.search(r"Requests/sec: +([\d.]+)", said)[1]))  # type: ignore[index]
    into.p50_ms.append(latency_ms(said, "50%"))
    into.p99_ms.append(latency_ms(said, "99%"))


def loaded(url: str, body: str, connections: int, seconds: int) -> subprocess.Popen[str]:
    """wrk at work."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua", delete=False) as script:
        script.write(f"wrk.method = 'POST'\nwrk.body = [==[{body}]==]\n")
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s", "--latency", "-s", script.name]
    return subprocess.Popen([*command, url], stdout=subprocess.PIPE, text=True)


def finished(work: subprocess.Popen[str]) -> str:
    said, _ = work.communicate()
    if work.returncode or "Non-2xx" in said or "Socket errors" in said:
        raise SystemExit(said)
    return said


def latency_ms(said: str, share: str) -> float:
    number, unit = re.search(rf"{share} +([\d.]+)(us|ms|s|m)\b", said).groups()  # type: ignore[union-attr]
    return float(number) * UNITS_MS[unit]


def memory_mb(port: int, pid: int, streams: int) -> tuple[float, float]:
    """(before, with so many streams open and read)"""
    before = resident_mb(pid)
    work = loaded(f"http://127.0.0.1:{port}/generate", json.dumps(LONG), streams, OPEN_S)
    time.sleep(OPEN_S - 2)
    during = resident_mb(pid)
    work.communicate()
    return before, during


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
