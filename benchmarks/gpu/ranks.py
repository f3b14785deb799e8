"""A model on one GPU or several: what each token is told, to compare, and what a decode step takes.

    python benchmarks/gpu/ranks.py --tp 2 --tp-leaves 2 --keep two.npz
    python benchmarks/gpu/ranks.py --tp 1 --tp-leaves 2 --keep one.npz
    python benchmarks/gpu/ranks.py --compare one.npz two.npz

Dummy weights of Qwen3-8B's shape. Prompts are scored and continued, greedily and drawn, some with filters that the
host draws, with graphs; then decode latency of 1 and 64 sequences.
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
from benchmarks.gpu.offline import QWEN3_8B
from tests.checkpoints.tiny import make_tiny_llama

from zerokl import LLM


def folder_of(layers: int | None) -> str:
    folder = make_tiny_llama(Path(tempfile.mkdtemp()) / "model", seed=1)
    config = QWEN3_8B | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16"}
    config |= {"num_hidden_layers": layers} if layers else {}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def prompts_of(count: int, longest: int) -> list[list[int]]:
    random = np.random.default_rng(7)
    return [random.integers(300, 151000, int(random.integers(longest // 2, longest))).tolist() for _ in range(count)]


def decode_ms(llm: LLM, sequences: int, new_tokens: int = 128) -> float:
    """Of a step of so many sequences behind 128 tokens."""
    prompts = [np.random.default_rng(i).integers(300, 151000, 128).tolist() for i in range(sequences)]
    times = {}
    for count in (1, new_tokens):
        llm.flush_cache()
        best = []
        for _ in range(3):
            llm.flush_cache()
            began = time.perf_counter()
            llm.generate(prompts, max_new_tokens=count, temperature=0, ignore_eos=True)
            best.append(time.perf_counter() - began)
        times[count] = min(best)
    return (times[new_tokens] - times[1]) / (new_tokens - 1) * 1e3


def prefill_s(llm: LLM) -> float:
    best = []
    prompts = [np.random.default_rng(i).integers(300, 151000, 4096).tolist() for i in range(8)]
    for _ in range(2):
        llm.flush_cache()
        began = time.perf_counter()
        llm.generate(prompts, max_new_tokens=1, temperature=0, ignore_eos=True)
        best.append(time.perf_counter() - began)
    return min(best)


def told(llm: LLM, count: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    ids: list[int] = []
    logprobs: list[float] = []
    prompts = prompts_of(count, longest)
    ways: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 1.0}, {"temperature": 0.8, "top_k": 40}]
    for number, way in enumerate(ways):
        part = prompts[number :: len(ways)]
        for one in llm.generate(part, max_new_tokens=64, logprobs=True, logprob_start=0, ignore_eos=True, **way):
            ids += one.token_ids
            logprobs += [value for value in one.prompt_logprobs or [] if value is not None]
            logprobs += one.logprobs or []
    return np.array(ids), np.array(logprobs, np.float32)


def compare(one: str, two: str) -> None:
    a, b = np.load(one), np.load(two)
    differing = int((a["logprobs"].view(np.uint32) != b["logprobs"].view(np.uint32)).sum())
    tokens = int((a["ids"] != b["ids"]).sum())
    facts = {"logprobs": len(a["logprobs"]), "differ": differing, "tokens": len(a["ids"]), "tokens differ": tokens}
    print(json.dumps(facts | {"fingerprints equal": bool(a["fingerprint"] == b["fingerprint"])}))
    sys.exit(bool(differing or tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--tp-leaves", type=int)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--prompts", type=int, default=150)
    parser.add_argument("--longest", type=int, default=2000)
    parser.add_argument("--keep", default="")
    parser.add_argument("--compare", nargs=2)
    parser.add_argument("--no-speed", action="store_true")
    given = parser.parse_args()
    if given.compare:
        compare(*given.compare)
    began = time.perf_counter()
    options: dict[str, Any] = {"device": "cuda", "tp": given.tp, "tp_leaves": given.tp_leaves, "load_format": "dummy"}
    with LLM(folder_of(given.layers), **options) as llm:
        line: dict[str, Any] = {
            "tp": given.tp,
            "leaves": given.tp_leaves,
            "start_s": round(time.perf_counter() - began, 1),
        }
        facts = json.loads(llm._parts.hello.facts)
        line |= {key: facts.get(key) for key in ("exchange", "other_ranks", "weight_bytes", "kernel_choices")}
        print(json.dumps(line), flush=True)
        if not given.no_speed:
            for sequences in (1, 64):
                print(
                    json.dumps({"sequences": sequences, "decode_ms": round(decode_ms(llm, sequences), 3)}), flush=True
                )
            print(json.dumps({"prefill of 8 x 4096, s": round(prefill_s(llm), 3)}), flush=True)
        if given.keep:
            ids, logprobs = told(llm, given.prompts, given.longest)
            np.savez(given.keep, ids=ids, logprobs=logprobs, fingerprint=np.array(llm.fingerprint))
            print(json.dumps({"kept": given.keep, "logprobs": len(logprobs), "tokens": len(ids)}), flush=True)


if __name__ == "__main__":
    main()
