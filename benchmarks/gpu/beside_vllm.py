"""This engine and vLLM on one GPU, case by case in turns: random weights of Qwen3-8B's shape, whole requests.

    python benchmarks/gpu/beside_vllm.py [--vllm-python PYTHON] [--repeats 3] [--cases decode-1 ...] [--json FILE]

PYTHON has vLLM (0.23.0 fits torch 2.11). Both engines run in processes of their own and stay there; a case runs on
one, then on the other, so that both meet the same chip at the same heat, and the best of the repeats counts.
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
VLLM_CACHE_BYTES = 44 << 30
"""Of keys and values: 320,000 tokens, twice what the largest case needs."""
OUR_PAGES = 4000

Run = Callable[[int, int, int], float]
"""(requests, prompt tokens, output tokens) -> seconds."""


def prompts(requests: int, length: int) -> list[list[int]]:
    return np.random.default_rng(0).integers(0, IDS, (requests, length)).tolist()


def ours(layers: int | None) -> Run:
    from offline import random_model
    from offline import run as run_offline

    from zerokl.runner.cuda import CudaRunner, Options

    runner = CudaRunner(random_model(layers), OUR_PAGES, Options())
    return lambda requests, prompt, outputs: run_offline(runner, requests, prompt, outputs, 8192)[0]


def vllm(layers: int | None) -> Run:
    from offline import QWEN3_8B
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    shape = QWEN3_8B | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16"}
    shape |= {"num_hidden_layers": layers} if layers else {}
    folder = tempfile.mkdtemp()
    Path(folder, "config.json").write_text(json.dumps(shape))
    llm = LLM(
        folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.55,
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


def child(engine: str, layers: int | None) -> None:
    """Answers each line, a case's name, with seconds. The pipe of answers is kept from libraries that print."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    began = time.perf_counter()
    run = {"ours": ours, "vllm": vllm}[engine](layers)
    print(json.dumps(time.perf_counter() - began), file=answers)
    for line in sys.stdin:
        print(json.dumps(run(*CASES[line.strip()])), file=answers)


class Engine:
    """One engine in its process. Raises RuntimeError if that has ended."""

    def __init__(self, name: str, python: str, layers: int | None) -> None:
        command = [python, __file__, "--child", name, *(["--layers", str(layers)] if layers else [])]
        pipe = subprocess.PIPE
        self.name = name
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **VLLM})

    def answer(self) -> float:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self.process.wait()}")
        return float(line)

    def run(self, case: str) -> float:
        assert self.process.stdin
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
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
        child(given.child, given.layers)
        return
    engines = {"ours": Engine("ours", sys.executable, given.layers)}
    ready = {"ours": engines["ours"].answer()}  # alone, as start-up of both at once would be neither's own
    engines["vllm"] = Engine("vllm", given.vllm_python, given.layers)
    ready["vllm"] = engines["vllm"].answer()
    print(json.dumps({"start_s": {name: round(seconds, 1) for name, seconds in ready.items()}}), flush=True)
    rows = []
    for case in given.cases:
        taken: dict[str, list[float]] = {name: [] for name in engines}
        for turn in range(given.repeats):
            for name in (*engines,) if turn % 2 == 0 else reversed(engines):
                taken[name].append(engines[name].run(case))
        rows.append(row_of(case, taken))
        print(json.dumps(rows[-1]), flush=True)
        if given.json:
            Path(given.json).write_text(json.dumps({"start_s": ready, "rows": rows}, indent=1))
    for engine in engines.values():
        engine.end()


def row_of(case: str, taken: dict[str, list[float]]) -> dict[str, Any]:
    """Tokens per second of the best repeat, and all repeats' seconds."""
    requests, prompt, outputs = CASES[case]
    tokens = requests * (outputs if outputs > 1 else prompt)
    best = {name: round(tokens / min(seconds), 1) for name, seconds in taken.items()}
    seconds = {name: [round(one, 3) for one in many] for name, many in taken.items()}
    return {"case": case, **best, "ratio": round(best["ours"] / best["vllm"], 3), "seconds": seconds}


if __name__ == "__main__":
    main()
