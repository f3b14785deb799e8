"""One sequence, zerokl's engine against llama.cpp, in turns on the same machine.

    benchmarks/llama_cpp/build.sh
    .venv/bin/python benchmarks/llama_cpp/compare.py --threads 2 --rounds 15 --json result.json

Both read the same GGUF file: of bf16 by default; a quantised one with `--dtype auto`, and `--numerics integer`.
`llama-bench` is llama.cpp's own benchmark: a prefill of P random tokens (logits of
the last one only) and a decode of N tokens from an empty context, without sampling. Ours is the engine as a server
runs it: scheduler, prefix cache, greedy sampling, Python and all; the prefill is one step of P tokens that ends in a
sampled token. Per round each program runs each test once, after a warm-up of its own. The ratio is taken within a
round, because what else the machine does changes between rounds; the medians of the rounds are what counts.

On a machine that is not idle put `benchmarks/llama_cpp/first.sh` before the command: llama.cpp's threads wait for each
other by spinning, so it loses far more than we do when they don't run at the same time, and the ratio would flatter us.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from zerokl import _native
from zerokl.config import Config
from zerokl.engine.build import build
from zerokl.engine.loop import Engine
from zerokl.types import Request, RequestId, SamplingParams

FOLDER = Path.home() / ".cache/zerokl/llama.cpp"


def main() -> None:
    options = arguments()
    ours = Ours(options)
    rounds = []
    for number in range(options.rounds):
        ours.prefill()  # a warm-up, as llama-bench has its own
        mine = {"prefill": ours.prefill(), "decode": ours.decode()}
        theirs = llama_cpp(options)
        rounds.append({"zerokl": mine, "llama.cpp": theirs, "load": os.getloadavg()[0]})
        print(f"round {number + 1:2}: " + ", ".join(f"{test} {line(rounds[-1:], test)}" for test in mine))
    report = {"machine": machine(), "options": {k: str(v) for k, v in vars(options).items()}, "rounds": rounds}
    report["summary"] = {test: summary(rounds, test) for test in ("prefill", "decode")}
    for test in report["summary"]:
        print(f"{test:>8}: {line(rounds, test)}  (median of {len(rounds)} rounds)")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--prefill", type=int, default=512, help="tokens of a prefill")
    parser.add_argument("--decode", type=int, default=64, help="tokens of a decode")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--numerics", default="exact", choices=["exact", "integer"])
    parser.add_argument("--model", type=Path, default=FOLDER / "model.gguf")
    parser.add_argument("--llama-bench", type=Path, default=FOLDER / "bin/llama-bench")
    parser.add_argument("--json", type=Path, help="where to write all numbers")
    return parser.parse_args()


class Ours:
    """The engine in this process. Speeds are tokens per second."""

    def __init__(self, options: argparse.Namespace) -> None:
        config = Config(
            model=str(options.model), dtype=options.dtype, cpu_numerics=options.numerics, threads=options.threads
        )
        built = build(config)
        self.engine: Engine = built.engine
        self.vocabulary = built.served.vocab
        self.options = options
        self.random = np.random.default_rng(0)
        self.requests = 0

    def prefill(self) -> float:
        count = self.options.prefill
        times = self.run(count, 1)
        return count / (times[-1] - times[0])

    def decode(self) -> float:
        """From the first sampled token on: the step of the prompt's only token is not counted, nor is it by them."""
        times = self.run(1, self.options.decode + 1)
        return self.options.decode / (times[-1] - times[1])

    def run(self, prompt_tokens: int, new_tokens: int) -> list[float]:
        """When the request came, and when each of its tokens was there."""
        prompt = [int(token) for token in self.random.integers(0, self.vocabulary, prompt_tokens)]
        self.requests += 1
        greedy = SamplingParams(temperature=0.0)
        request = Request(RequestId(self.requests), prompt, new_tokens, greedy, use_cache=False)
        times = [time.perf_counter()]
        self.engine.submit(request)
        while self.engine.has_work:
            tokens = [progress.token for progress in self.engine.step()]
            times += [time.perf_counter() for token in tokens if token is not None]
        return times


def llama_cpp(options: argparse.Namespace) -> dict[str, float]:
    command = [options.llama_bench, "-m", options.model, "-t", options.threads, "-r", 1, "-o", "json"]
    tests = ["-p", options.prefill, "-n", options.decode]
    result = subprocess.run([*map(str, command), *map(str, tests)], capture_output=True, text=True, check=True)
    speeds = {"prefill" if test["n_prompt"] else "decode": test["avg_ts"] for test in json.loads(result.stdout)}
    return {test: speeds[test] for test in ("prefill", "decode")}


def summary(rounds: list[dict[str, Any]], test: str) -> dict[str, float]:
    def median(program: str) -> float:
        return statistics.median(r[program][test] for r in rounds)

    ratios = [r["zerokl"][test] / r["llama.cpp"][test] for r in rounds]
    return {
        "zerokl": round(median("zerokl"), 1),
        "llama.cpp": round(median("llama.cpp"), 1),
        "ratio": round(statistics.median(ratios), 3),
        "lowest_ratio": round(min(ratios), 3),
        "highest_ratio": round(max(ratios), 3),
        "best_zerokl": round(max(r["zerokl"][test] for r in rounds), 1),
        "best_llama.cpp": round(max(r["llama.cpp"][test] for r in rounds), 1),
    }


def line(rounds: list[dict[str, Any]], test: str) -> str:
    numbers = summary(rounds, test)
    return f"{numbers['zerokl']:7.1f} against {numbers['llama.cpp']:7.1f} tokens/s, {numbers['ratio']:.2f}x"


def machine() -> dict[str, Any]:
    model = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")), "")
    return {
        "processor": model.partition(":")[2].strip() or platform.processor(),
        "cpus": os.cpu_count(),
        "isa": _native.isa(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


if __name__ == "__main__":
    main()
