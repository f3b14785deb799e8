"""Start-up time and memory on the CPU: our library, our server and llama.cpp's, each server with a Python client.

    benchmarks/llama_cpp/startup.py MODEL.gguf --llama-server PATH [--client urllib httpx openai]

Time runs from the start of the first process to the first token that the client has; the model's file is in the
system's cache by then. Peak is the sum over all processes of the largest resident set, mapped weights included, once
each has answered a prompt of 512 tokens with 32 more; what several processes share counts in each. Held is what they
have together after that (proportional set sizes). A client loads its library while the server starts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
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
ASK = {
    "urllib": """
import json, urllib.request
def ask(prompt, tokens):
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0}).encode()
    request = urllib.request.Request(base + "/v1/completions", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=60).read()
""",
    "httpx": """
import httpx
client = httpx.Client(base_url=base, timeout=60)
def ask(prompt, tokens):
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    client.post("/v1/completions", json=body).raise_for_status()
""",
    "openai": """
import openai
client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
def ask(prompt, tokens):
    client.completions.create(model="m", prompt=prompt, max_tokens=tokens, temperature=0)
""",
}
CLIENT = """
import sys, time
base = "http://127.0.0.1:" + sys.argv[1]
{ask}
while True:
    try:
        ask([5, 6, 7, 8], 1)
        break
    except Exception:
        time.sleep(0.005)
print("first", flush=True)
ask(list(range(512)), 32)
print("done", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Measured:
    """One round of one arm."""

    seconds: float
    peak_mb: float
    held_mb: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--client", nargs="+", choices=ASK, default=["urllib", "openai"])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each start would compile what it loads
    arms = arms_of(options.model, options.llama_server, options.client)
    found: dict[str, list[Measured]] = {name: [] for name in arms}
    for _ in range(options.rounds):
        for name, commands in arms.items():
            found[name].append(measured(commands))
    for name, rounds in found.items():
        columns = [column([getattr(one, field) for one in rounds]) for field in ("seconds", "peak_mb", "held_mb")]
        print("{:42} {:>22} s {:>22} MiB peak {:>22} MiB held".format(name, *columns))


def arms_of(model: str, llama_server: str, clients: Sequence[str]) -> dict[str, list[list[str]]]:
    """Commands of each arm's processes; the last one is the client."""
    zerokl = str(Path(sys.executable).with_name("zerokl"))
    serve = [zerokl, "serve", model, "--context-length", "2048"]
    servers = {
        "zerokl serve": serve,
        "zerokl serve --frontend rust": [*serve, "--frontend", "rust"],
        "llama-server": [llama_server, "-m", model, "-c", "2048", "-t", "2"],
    }
    arms = {"zerokl, as a library": [[sys.executable, "-c", EMBEDDED, model]]}
    ports = iter(range(38101, 38200))
    for client in clients:
        for name, server in servers.items():
            port = str(next(ports))
            script = CLIENT.format(ask=ASK[client])
            arms[f"{name} and {client}"] = [[*server, "--port", port], [sys.executable, "-c", script, port]]
    return arms


def column(values: Sequence[float]) -> str:
    """Median, lowest and highest."""
    digits = 2 if max(values) < 10 else 0
    return "{:.{d}f} ({:.{d}f} to {:.{d}f})".format(statistics.median(values), min(values), max(values), d=digits)


def measured(commands: Sequence[Sequence[str]]) -> Measured:
    """Run once. The last command is the client."""
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        servers = [subprocess.Popen(command, stdout=log, stderr=log) for command in commands[:-1]]
        with subprocess.Popen(
            commands[-1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as client:
            assert client.stdout is not None
            assert client.stdin is not None
            said = client.stdout.readline()
            seconds = time.perf_counter() - began
            said += client.stdout.readline()
            if said != "first\ndone\n":
                raise SystemExit(f"no answer from {commands[0]}")
            processes = family([client.pid, *(server.pid for server in servers)])
            peak = sum(kibibytes(number, "status", "VmHWM") for number in processes)
            held = sum(kibibytes(number, "smaps_rollup", "Pss") for number in processes)
            client.stdin.close()
        for server in servers:
            server.terminate()
            server.wait(20)
    return Measured(seconds, peak / 1024, held / 1024)


def family(roots: Sequence[int]) -> list[int]:
    """These processes and all that they have started."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    numbers = list(roots)
    for number in numbers:
        numbers += [child for child, parent in parents.items() if parent == number]
    return numbers


def kibibytes(number: int, file: str, name: str) -> int:
    lines = Path(f"/proc/{number}/{file}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main()
