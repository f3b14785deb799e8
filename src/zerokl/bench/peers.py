"""Speed against llama.cpp and transformers on the same machine: one file, same tests, in turns.

A test is a prefill of one prompt, or a decode of some sequences at some depth; its speed is tokens per second. In each
round every program runs each test once, one program right after the other, and the ratio is taken within a round:
what else the machine does changes between rounds. Medians of the rounds are what counts.

Ours is the engine as a server runs it: scheduler, cache, greedy sampling, Python and all. llama.cpp's are its own
benchmarks, which don't sample; transformers' is the model called in a loop, with the likeliest token.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from zerokl.config import Config
from zerokl.engine.build import build
from zerokl.errors import CallerError
from zerokl.types import Request, RequestId, SamplingParams

PROMPT = 16
"""Tokens of a prompt before a decode, if it isn't deeper."""


@dataclass(frozen=True, slots=True)
class Task:
    """`prefill:512`: a prompt of 512 tokens; `decode:8`: 8 sequences; `decode:1@8192`: one, 8,192 tokens deep."""

    kind: str
    size: int
    depth: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        kind, _, rest = text.partition(":")
        size, _, depth = rest.partition("@")
        with suppress(ValueError):
            test = cls(kind, int(size), int(depth or 0))
            if test.size > 0 and test.depth >= 0 and (kind == "decode" or (kind == "prefill" and not test.depth)):
                return test
        raise CallerError(f"{text!r} is no test; write prefill:TOKENS, decode:SEQUENCES or decode:SEQUENCES@DEPTH")

    def __str__(self) -> str:
        return f"{self.kind}:{self.size}" + (f"@{self.depth}" if self.depth else "")


class Program(Protocol):
    """One that is measured."""

    @property
    def name(self) -> str: ...

    def speed(self, test: Task) -> float:
        """Tokens per second."""


class Zerokl:
    """Our engine, in this process."""

    name = "zerokl"

    def __init__(self, config: Config, new_tokens: int) -> None:
        built = build(config)
        self.engine, self.vocabulary = built.engine, built.served.vocab
        self.facts = json.loads(built.hello.facts)
        self.new_tokens = new_tokens
        self.random = np.random.default_rng(0)
        self.requests = 0
        self.deep: dict[int, list[int]] = {}

    def speed(self, test: Task) -> float:
        if test.kind == "prefill":
            times = self.run([self.prompt(test.size)], 1)
            return test.size / (times[-1][0] - times[0][0])
        prompts = [self.prompt(PROMPT) for _ in range(test.size)]
        if test.depth:
            prompts = [self.deep_prompt(test.depth)] * test.size
        times = self.run(prompts, self.new_tokens + 1)
        begun = next(i for i, (_, tokens) in enumerate(times) if tokens >= test.size)
        (start, before), (stop, after) = times[begun], times[-1]
        return (after - before) / (stop - start)

    def prompt(self, length: int) -> list[int]:
        return [int(token) for token in self.random.integers(0, self.vocabulary, length)]

    def deep_prompt(self, depth: int) -> list[int]:
        """The same each time: only the first time is it computed, then it comes from the cache."""
        return self.deep.setdefault(depth, self.prompt(depth))

    def run(self, prompts: list[list[int]], new_tokens: int) -> list[tuple[float, int]]:
        """(when, tokens sampled so far) at the start and after every step."""
        for prompt in prompts:
            self.requests += 1
            greedy = SamplingParams(temperature=0.0)
            cached = prompt in self.deep.values()
            self.engine.submit(Request(RequestId(self.requests), prompt, new_tokens, greedy, use_cache=cached))
        times, tokens = [(time.perf_counter(), 0)], 0
        while self.engine.has_work:
            tokens += sum(progress.token is not None for progress in self.engine.step())
            times.append((time.perf_counter(), tokens))
        return times


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """`llama-bench` for one sequence, `llama-batched-bench` for more."""

    folder: Path
    model: Path
    threads: int
    new_tokens: int
    kv_dtype: str
    name: str = "llama.cpp"

    def speed(self, test: Task) -> float:
        cache = ["-ctk", self.kv_dtype, "-ctv", self.kv_dtype]
        if test.kind == "prefill" or test.size == 1:
            asked = ["-p", test.size, "-n", 0] if test.kind == "prefill" else ["-p", 0, "-n", self.new_tokens]
            lines = self.run("llama-bench", "-r", 1, "-o", "jsonl", *asked, "-d", test.depth, *cache)
            return float(lines[-1]["avg_ts"])
        prompt = test.depth or PROMPT
        cells = test.size * (prompt + self.new_tokens)
        sizes = ["-npp", prompt, "-ntg", self.new_tokens, "-npl", test.size, "-c", cells, "-b", 2048]
        return float(self.run("llama-batched-bench", *sizes, *cache, "--output-format", "jsonl")[-1]["speed_tg"])

    def run(self, program: str, *arguments: object) -> list[dict[str, Any]]:
        command = [str(self.folder / program), "-m", str(self.model), "-t", str(self.threads), *map(str, arguments)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except FileNotFoundError as error:
            raise CallerError(f"no {program} in {self.folder}; benchmarks/llama_cpp/build.sh builds it") from error
        except subprocess.CalledProcessError as error:
            raise CallerError(f"{program} failed: {(error.stderr or error.stdout).strip()[-400:]}") from error
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class Transformers:
    """`peer_transformers.py` in the Python that has them."""

    name = "transformers"

    def __init__(self, python: Path, model: Path, threads: int, new_tokens: int) -> None:
        script = Path(__file__).with_name("peer_transformers.py")
        command = [str(python), "-P", str(script), str(model), str(threads), str(PROMPT), str(new_tokens)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def speed(self, test: Task) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([test.kind, test.size, test.depth]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise CallerError("the Python with transformers ended; what it said is above")
        return float(answer)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


Round = dict[str, dict[str, float]]
"""Task -> program -> tokens per second."""


def rounds_of(programs: Sequence[Program], tests: Sequence[Task], count: int) -> Iterator[Round]:
    """Round by round, after one that warms up and doesn't count."""
    for number in range(count + 1):
        found = {str(test): {program.name: program.speed(test) for program in programs} for test in tests}
        if number:
            yield found


def summary(rounds: Sequence[Round], test: str) -> dict[str, Any]:
    """Medians, and ours over each peer's: median, lowest and highest of the rounds' ratios."""
    names = list(rounds[0][test])
    speeds = {name: statistics.median(found[test][name] for found in rounds) for name in names}
    ratios = {name: [found[test][names[0]] / found[test][name] for found in rounds] for name in names[1:]}
    return {
        "tokens_per_second": {name: round(speed, 1) for name, speed in speeds.items()},
        "ratio": {
            name: {"median": statistics.median(each), "lowest": min(each), "highest": max(each)}
            for name, each in ratios.items()
        },
    }
