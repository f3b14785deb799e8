"""What each frontend adds to a token's time: from the engine's record on the wire to the frame at the client.

    python benchmarks/gpu/added_latency.py MODEL [--streams 128] [--tokens 256] [--rounds 3] [-- SERVE OPTIONS]

A server runs with the real engine; the frontend that is measured stands on the engine's socket through a relay that
notes when each record passed, and 16 clients per process note when each frame came, by the same clock. So the model's
speed and the network are not in it, and what the relay and the clients take is the same for both frontends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

HTTP = Path(__file__).parents[1] / "http"
sys.path.insert(0, str(HTTP))

from compare import cpu_s, free_port, process, wait_for  # noqa: E402

from zerokl.wire.frames import engine_side_reader, frontend_side_reader  # noqa: E402
from zerokl.wire.messages import Step, Submit  # noqa: E402
from zerokl.wire.records import decode_step  # noqa: E402

FRONTENDS = {"python": HTTP / "our_frontend.py", "rust": HTTP / "rust_frontend.py"}
PER_PROCESS = 16
PROMPT_TOKENS = 32
FRAME, END = b'data: {"', b"data: [DONE]\n\n\r\n0\r\n\r\n"
FIRST_ID = 1000
"""Prompts are numbered by their last id, so that records and frames find each other."""

Times = dict[int, list[int]]
"""By the number of a stream: when each of its records or frames came, in nanoseconds."""


class Relay:
    """Passes bytes between one frontend and the engine at once, and remembers them with their time."""

    def __init__(self, engine: Path, listen: Path) -> None:
        self._engine = engine
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listen))
        self._listener.listen()
        self._to_engine: list[tuple[int, bytes]] = []
        self._to_frontend: list[tuple[int, bytes]] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        frontend, _ = self._listener.accept()
        engine = socket.socket(socket.AF_UNIX)
        engine.connect(str(self._engine))
        for pair in ((frontend, engine, self._to_engine), (engine, frontend, self._to_frontend)):
            threading.Thread(target=self._pass, args=pair, daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket, noted: list[tuple[int, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                now = time.monotonic_ns()
                sink.sendall(data)
                noted.append((now, data))
        sink.close()

    def records(self) -> Times:
        """Of all requests so far."""
        numbers: dict[int, int] = {}
        reader = engine_side_reader()
        for _, data in self._to_engine:
            for frame in reader.feed(data):
                if isinstance(frame.message, Submit):
                    prompt = frame.ints(frame.message.prompt, "i")
                    numbers[frame.message.rid] = int(prompt[-1]) - FIRST_ID
        times: Times = defaultdict(list)
        answers = frontend_side_reader()
        for now, data in self._to_frontend:
            for frame in answers.feed(data):
                if isinstance(frame.message, Step):
                    for record in decode_step(frame):  # type: ignore[arg-type]
                        times[numbers[record.rid]].append(now)
        return times


async def read_stream(port: int, number: int, tokens: int) -> tuple[int, list[int]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    ids = [*(FIRST_ID + (7 * number + i) % 500 for i in range(PROMPT_TOKENS - 1)), FIRST_ID + number]
    params = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}
    body = json.dumps({"input_ids": ids, "stream": True, "sampling_params": params}).encode()
    writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    times: list[int] = []
    tail = b""
    while not tail.endswith(END):
        data = await reader.read(1 << 20)
        now = time.monotonic_ns()
        assert data, "the frontend hung up"
        times += [now] * (tail[1 - len(FRAME) :] + data).count(FRAME)
        tail = (tail + data)[-len(END) :]
    writer.close()
    return number, times


def read_streams(port: int, numbers: range, tokens: int) -> list[tuple[int, list[int]]]:
    async def all_of_them() -> list[tuple[int, list[int]]]:
        return await asyncio.gather(*(read_stream(port, number, tokens) for number in numbers))

    return asyncio.run(all_of_them())


@contextlib.contextmanager
def engine_folder(model: str, options: list[str]) -> Iterator[Path]:
    """The run folder of a server with this model."""
    command = [sys.executable, "-c", "from zerokl.cli import main; main()", "serve", model, "--port", "0", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        print(server.stdout.readline().strip(), flush=True)
        yield run_folder(server.pid)
    finally:
        server.terminate()
        server.wait()


def run_folder(server: int) -> Path:
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            command = (status.parent / "cmdline").read_bytes().decode().split("\0")
            if f"PPid:\t{server}\n" in status.read_text() and "zerokl.cli.engine" in command:
                return Path(command[command.index("zerokl.cli.engine") + 1])
    raise SystemExit("the server did not start")


def measure(frontend: str, folder: Path, given: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="zk") as name, contextlib.ExitStack() as stack:
        for path in folder.iterdir():
            if path.is_file():
                shutil.copy(path, name)
        relay = Relay(folder / "engine.sock", Path(name) / "engine.sock")
        port = free_port()
        pid = stack.enter_context(process(FRONTENDS[frontend], name, str(port))).pid
        wait_for(port)
        time.sleep(1)
        before, began = cpu_s(pid), time.monotonic()
        groups = [range(i, min(i + PER_PROCESS, given.streams)) for i in range(0, given.streams, PER_PROCESS)]
        with multiprocessing.get_context("spawn").Pool(len(groups)) as pool:
            parts = pool.starmap(read_streams, [(port, group, given.tokens) for group in groups])
        seconds, cpu = time.monotonic() - began, cpu_s(pid) - before
        records, frames = relay.records(), dict(one for part in parts for one in part)
    added = []
    for number, came in frames.items():
        sent = records[number]
        assert len(sent) == len(came) == given.tokens, (number, len(sent), len(came))
        added += [(b - a) / 1e6 for a, b in zip(sent, came, strict=True)]
    added.sort()
    steps = [(b - a) / 1e6 for row in records.values() for a, b in itertools.pairwise(row)]
    return {
        "added mean ms": statistics.fmean(added),
        "added p50 ms": added[len(added) // 2],
        "added p99 ms": added[int(0.99 * len(added))],
        "engine step p50 ms": statistics.median(steps),
        "tokens/s": len(added) / seconds,
        "CPU us a token": 1e6 * cpu / len(added),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = parser.parse_args(sys.argv[1:cut])
    figures: dict[str, list[dict[str, float]]] = {frontend: [] for frontend in FRONTENDS}
    with engine_folder(given.model, sys.argv[cut + 1 :]) as folder:
        measure("rust", folder, given)  # warm: every bucket that these widths meet
        for _ in range(given.rounds):
            for frontend, rows in figures.items():
                rows.append(measure(frontend, folder, given))
                print(frontend, json.dumps({name: round(value, 3) for name, value in rows[-1].items()}), flush=True)
    print(
        f"\n{given.streams} streams of {given.tokens} tokens, medians of {given.rounds} rounds, {os.cpu_count()} cores"
    )
    names = list(figures["rust"][0])
    print("| | " + " | ".join(figures) + " |\n|---|" + "--:|" * len(figures))
    for name in names:
        cells = (statistics.median(row[name] for row in rows) for rows in figures.values())
        print(f"| {name} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
