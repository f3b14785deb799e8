"""The case that this project was started for, on several GPUs: Inkling-Small's layers, cut to six, past the window.

    python benchmarks/gpu/inkling.py --tp 2 [--experts 256]

Two dense layers and four with experts, local ones with a window of 512 and global ones, dummy weights, graphs on. What
was said while decoding is compared with what the same tokens score in prefill: with an empty cache, with the whole
answer cached by decoding, and decoded again behind a cached prompt; each of 32 prompts by 1,024 new tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.checkpoints.tiny import make_tiny_llama
from tests.cli.test_dry_run import INKLING_SMALL

from zerokl import LLM

PROMPTS, NEW_TOKENS = 32, 1024


def folder_of(experts: int) -> str:
    folder = make_tiny_llama(Path(tempfile.mkdtemp()) / "model", seed=1)
    text = INKLING_SMALL["text_config"] | {
        "num_hidden_layers": 6,
        "local_layer_ids": [0, 2, 3, 4],
        "n_routed_experts": experts,
        "model_max_length": 4096,
    }
    (folder / "config.json").write_text(json.dumps(INKLING_SMALL | {"text_config": text}))
    return str(folder)


def differing(one: list[list[float]], two: list[list[float]]) -> tuple[int, int, float]:
    """(values, how many differ, largest mean absolute difference of a prompt)."""
    pairs = [(np.array(a, np.float32), np.array(b, np.float32)) for a, b in zip(one, two, strict=True)]
    count = sum(len(a) for a, _ in pairs)
    worst = max(float(np.abs(a - b).mean()) for a, b in pairs)
    return count, sum(int((a.view(np.uint32) != b.view(np.uint32)).sum()) for a, b in pairs), worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    given = parser.parse_args()
    random = np.random.default_rng(3)
    prompts = [random.integers(300, 200000, int(random.integers(520, 700))).tolist() for _ in range(PROMPTS)]
    began = time.perf_counter()
    options: dict[str, Any] = {"device": "cuda", "tp": given.tp, "load_format": "dummy", "max_running_requests": 64}
    with LLM(folder_of(given.experts), **options, max_total_tokens=131072) as llm:
        print(json.dumps({"start_s": round(time.perf_counter() - began, 1), "tp": given.tp}), flush=True)
        began = time.perf_counter()
        ask: dict[str, Any] = {"temperature": 1.0, "logprobs": True, "ignore_eos": True}
        ask["max_new_tokens"] = given.new_tokens
        first = llm.generate(prompts, **ask)
        print(json.dumps({"decode_s": round(time.perf_counter() - began, 1)}), flush=True)
        decoded = [one.logprobs or [] for one in first]
        whole = [one.all_ids for one in first]

        def scored() -> tuple[list[list[float]], list[int]]:
            outputs = [
                llm.generate([ids], max_new_tokens=0, logprob_start=len(prompt) - 1)[0]
                for ids, prompt in zip(whole, prompts, strict=True)
            ]
            found = [[value for value in one.prompt_logprobs or [] if value is not None] for one in outputs]
            return found, [one.cached_tokens for one in outputs]

        cases: dict[str, tuple[list[list[float]], list[int]]] = {"scored behind what was cached": scored()}
        llm.flush_cache()
        cases["scored with an empty cache"] = scored()
        again = llm.generate(prompts, **ask)
        cases["decoded again behind cached prompts"] = (
            [one.logprobs or [] for one in again],
            [one.cached_tokens for one in again],
        )
        wrong = sum(a.token_ids != b.token_ids for a, b in zip(first, again, strict=True))
        for name, (values, cached) in cases.items():
            count, differ, worst = differing(decoded, values)
            wrong += differ
            hits = sum(tokens > 0 for tokens in cached)
            line = {"case": name, "logprobs": count, "differ": differ, "worst": worst, "prompts that hit": hits}
            print(json.dumps(line), flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
