"""Start-up time and peak memory on the CPU: our library, our server, and llama.cpp's server, each with a Python client.

    benchmarks/llama_cpp/first.sh .venv/bin/python benchmarks/llama_cpp/startup.py MODEL.gguf --llama-server PATH

Time runs from the start of the first process to the first token that the client has; the model's file is in the
system's cache by then. Memory is the sum over all processes of the largest resident set, mapped weights included, once
each process has answered a prompt of 512 tokens with 32 more.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EMBEDDED = """
import sys
from zerokl import LLM
llm = LLM(sys.argv[1], context_length=2048)
llm.generate([[5, 6, 7, 8]], max_new_tokens=1, temperature=0)
print("first", flush=True)
llm.generate([list(range(512))], max_new_tokens=32, temperature=0)
print("done", flush=True)
sys.stdin.read()
"""
CLIENT = """
import json, sys, time, urllib.error, urllib.request
base = "http://127.0.0.1:" + sys.argv[1]
def ask(prompt, tokens):
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0}).encode()
    request = urllib.request.Request(base + "/v1/completions", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=60).read()
while True:
    try:
        ask([5, 6, 7, 8], 1)
        break
    except (urllib.error.URLError, ConnectionError):
        time.sleep(0.005)
print("first", flush=True)
ask(list(range(512)), 32)
print("done", flush=True)
sys.stdin.read()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    zerokl = str(Path(sys.executable).with_name("zerokl"))
    serve = [zerokl, "serve", options.model, "--context-length", "2048", "--port"]
    llama = [options.llama_server, "-m", options.model, "-c", "2048", "-t", "2", "--port"]
    arms = {
        "zerokl, as a library": [[sys.executable, "-c", EMBEDDED, options.model]],
        "zerokl serve and a client": [[*serve, "38101"], [sys.executable, "-c", CLIENT, "38101"]],
        "the same, --frontend rust": [
            [*serve, "38102", "--frontend", "rust"],
            [sys.executable, "-c", CLIENT, "38102"],
        ],
        "llama-server and a client": [[*llama, "38103"], [sys.executable, "-c", CLIENT, "38103"]],
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for _ in range(options.rounds):
        for name, commands in arms.items():
            found[name].append(measured(commands))
    for name, rounds in found.items():
        seconds, mebibytes = zip(*rounds, strict=True)
        print(
            f"{name:28} {statistics.median(seconds):6.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), "
            f"{statistics.median(mebibytes):6.0f} MiB ({min(mebibytes):.0f} to {max(mebibytes):.0f})"
        )


def measured(commands: list[list[str]]) -> tuple[float, float]:
    """Seconds to the first token, and MiB of all processes' largest resident sets. The last command is the client."""
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        servers = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands[:-1]]
        with subprocess.Popen(commands[-1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            assert client.stdin is not None
            said = client.stdout.readline()
            seconds = time.perf_counter() - began
            said += client.stdout.readline()
            if said != "first\ndone\n":
                raise SystemExit(f"no answer from {commands[0]}")
            peak = sum(largest(number) for number in family([client.pid, *(server.pid for server in servers)]))
            client.stdin.close()
        for server in servers:
            server.terminate()
            server.wait(20)
    return seconds, peak / 1024


def family(roots: list[int]) -> list[int]:
    """These processes and all that they have started."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    numbers = list(roots)
    for number in numbers:
        numbers += [child for child, parent in parents.items() if parent == number]
    return numbers


def largest(number: int) -> int:
    """KiB of a process's largest resident set."""
    status = Path(f"/proc/{number}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
