"""This engine and vLLM on one GPU, case by case in turns: random weights of Qwen3-8B's shape, whole requests.

    python benchmarks/gpu/beside_vllm.py [--vllm-python PYTHON] [--repeats 3] [--cases decode-1 ...] [--json FILE]

PYTHON has vLLM (0.23.0 fits torch 2.11). Both engines run in processes of their own and stay there; a case runs on
one, then on the other, so that both meet the same chip at the same heat. All cases, then all again; the best counts,
as the first one may still compile.
vLLM runs as it comes, but for the prefix cache, which is off on both sides, and its engine, which runs in the caller's
process as ours does. Both are greedy and get the same ids.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CASES = {
    # name: (requests, prompt tokens, output tokens)
    "prefill-16x4096": (16, 4096, 1),
    "decode-1": (1, 128, 256),
    "decode-16": (16, 128, 256),
    "decode-64": (64, 128, 256),
    "decode-256": (256, 128, 256),
    "mixed-128": (128, 1024, 256),
}
IDS = 151936
VLLM = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
VLLM |= {"VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1"}
VLLM_CACHE_BYTES = 32 << 30
"""Of keys and values: 233,000 tokens, more than the largest case needs (164,000)."""
OUR_PAGES = 2800
"""Of 64 tokens: 179,000."""

Run = Callable[[int, int, int], float]
"""(requests, prompt tokens, output tokens) -> seconds."""


def prompts(requests: int, length: int) -> list[list[int]]:
    return np.random.default_rng(0).integers(0, IDS, (requests, length)).tolist()


def ours(shape: dict[str, Any]) -> Run:
    from offline import random_model
    from offline import run as run_offline

    from zerokl.runner.cuda import CudaRunner, Options

    runner = CudaRunner(random_model(shape["num_hidden_layers"]), OUR_PAGES, Options())

    def run(requests: int, prompt: int, outputs: int) -> float:
        began = time.perf_counter()
        run_offline(runner, requests, prompt, outputs, 8192)
        return time.perf_counter() - began  # making and queueing the requests too, as for vLLM

    return run


def vllm(shape: dict[str, Any]) -> Run:
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    folder = tempfile.mkdtemp()
    Path(folder, "config.json").write_text(json.dumps(shape))
    llm = LLM(
        folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.4,
        kv_cache_memory_bytes=VLLM_CACHE_BYTES,
    )

    def run(requests: int, prompt: int, outputs: int) -> float:
        asked = [{"prompt_token_ids": ids} for ids in prompts(requests, prompt)]
        how = SamplingParams(temperature=0.0, max_tokens=outputs, ignore_eos=True, detokenize=False)
        began = time.perf_counter()
        answers = llm.generate(asked, how, use_tqdm=False)
        seconds = time.perf_counter() - began
        assert [len(answer.outputs[0].token_ids) for answer in answers] == [outputs] * requests
        return seconds

    return run


def child(engine: str) -> None:
    """The first line is the model's shape; each further one, a case's name, is answered with seconds.

    The pipe of answers is kept from libraries that print.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    began = time.perf_counter()
    run = {"ours": ours, "vllm": vllm}[engine](json.loads(sys.stdin.readline()))
    print(json.dumps(time.perf_counter() - began), file=answers)
    while line := sys.stdin.readline():
        print(json.dumps(run(*CASES[line.strip()])), file=answers)


class Engine:
    """One engine in its process. Raises RuntimeError if that has ended."""

    def __init__(self, name: str, python: str, shape: dict[str, Any]) -> None:
        command, pipe = [python, __file__, "--child", name], subprocess.PIPE
        self.name = name
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**VLLM, **os.environ})
        self.say(json.dumps(shape))

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> float:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self.process.wait()}")
        return float(line)

    def run(self, case: str) -> float:
        self.say(case)
        return self.answer()

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm-python", default=sys.executable)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--layers", type=int, help="fewer, to try the script")
    parser.add_argument("--json")
    parser.add_argument("--child")
    given = parser.parse_args()
    if given.child:
        child(given.child)
        return
    shape = shape_of(given.layers)
    pythons = {"ours": sys.executable, "vllm": given.vllm_python}
    engines = {name: Engine(name, python, shape) for name, python in pythons.items()}
    ready = {name: round(engine.answer(), 1) for name, engine in engines.items()}
    print(json.dumps({"start_s, both at once": ready}), flush=True)
    taken: dict[str, dict[str, list[float]]] = {case: {name: [] for name in engines} for case in given.cases}
    for turn in range(given.repeats):
        for case in given.cases:
            for name in engines if turn % 2 == 0 else reversed(engines):
                taken[case][name].append(engines[name].run(case))
            print(json.dumps(row_of(case, taken[case])), flush=True)
        if given.json:
            rows = [row_of(case, taken[case]) for case in given.cases]
            Path(given.json).write_text(json.dumps({"start_s": ready, "rows": rows}, indent=1))
    for engine in engines.values():
        engine.end()


def shape_of(layers: int | None) -> dict[str, Any]:
    """As a checkpoint's config.json says it."""
    from offline import QWEN3_8B

    shape = QWEN3_8B | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16"}
    return shape | ({"num_hidden_layers": layers} if layers else {})


def row_of(case: str, taken: dict[str, list[float]]) -> dict[str, Any]:
    """Tokens per second of the best repeat, and all repeats' seconds."""
    requests, prompt, outputs = CASES[case]
    tokens = requests * (outputs if outputs > 1 else prompt)
    best = {name: round(tokens / min(seconds), 1) for name, seconds in taken.items()}
    seconds = {name: [round(one, 3) for one in many] for name, many in taken.items()}
    return {"case": case, **best, "ratio": round(best["ours"] / best["vllm"], 3), "seconds": seconds}


if __name__ == "__main__":
    main()
