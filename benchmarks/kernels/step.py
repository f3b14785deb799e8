"""Where the time of one decode step, and of one prefill, goes: per operation, against the machine's ceilings.

    .venv/bin/python benchmarks/kernels/step.py MODEL [--sequences 1 8 16] [--prefill 512] [--isa avx2] [--json FILE]

The engine runs as a server runs it. Each operation's time is what the tape (`ops/tape.py`) counted, in medians of the
faster half of steps, because what else runs only slows them down; its floor is what reading its weights and keys once,
or its multiply-adds, would take at the ceilings that this process has just measured. What a step takes beyond its
operations is Python: planning, sampling, bookkeeping. A prefill is one step: of 512 tokens at most. `--pin` keeps
thread i on processor i, for machines that others use: while a scheduler has two threads of ours on one processor, half
the speed is what one measures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from zerokl import _native
from zerokl.bench.ceilings import Ceilings, ceilings
from zerokl.config import Config
from zerokl.engine.build import build
from zerokl.runner import CpuRunner
from zerokl.types import Request, RequestId, SamplingParams

PROMPT, STEPS = 16, 64
NUMBERS = itertools.count(1)
"""Of requests: the engine knows each by its own."""


def main() -> None:
    options = arguments()
    if options.isa:
        _native.set_isa(options.isa)
    config = Config(
        model=options.model,
        dtype=options.dtype,
        threads=options.threads,
        kv_cache_dtype=options.kv_cache_dtype,
        max_total_tokens=65536,
    )
    built = build(config)
    if options.pin:
        pin()
    limits = ceilings()
    print(f"{limits.read_gb_per_s:.1f} GB/s, {limits.gflop_per_s:.0f} GFLOP/s, {_native.isa()} on {_native.threads()}")
    cases = [(f"decode of {count}", [PROMPT] * count, STEPS) for count in options.sequences]
    cases += [(f"prefill of {length}", [length], 1) for length in options.prefill]
    cases += [(f"decode at {depth}", [depth], STEPS) for depth in options.depth]
    found = {name: measured(built, prompts, new_tokens) for name, prompts, new_tokens in cases}
    runner = built.engine.runner
    assert isinstance(runner, CpuRunner)
    for name, case in found.items():
        show(name, case, limits, runner.model)
    if options.json:
        options.json.write_text(json.dumps({"ceilings": [limits.read_gb_per_s, limits.gflop_per_s], **found}, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--sequences", type=int, nargs="*", default=[1, 8, 16])
    parser.add_argument("--prefill", type=int, nargs="*", default=[512])
    parser.add_argument("--depth", type=int, nargs="*", default=[], help="decodes of one sequence so deep")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", help="the best there is, unless given")
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def pin() -> None:
    """This thread to the first processor, the pool's to the next ones."""
    _native.multiply_add(1)  # the pool's threads exist after a first job
    processors = sorted(os.sched_getaffinity(0))
    for task in Path("/proc/self/task").iterdir():
        name = (task / "comm").read_text().strip()
        if name.startswith("zerokl-") and name[7:].isdigit():
            os.sched_setaffinity(int(task.name), {processors[int(name[7:]) % len(processors)]})
    os.sched_setaffinity(0, {processors[0]})


def measured(built: Any, prompts: list[int], new_tokens: int) -> dict[str, Any]:
    """Medians of the faster half of steps: of the whole and of each operation, in seconds. A prefill is one step."""
    engine, random = built.engine, np.random.default_rng(0)
    tape = engine.runner.recorded
    steps: list[tuple[float, dict[str, float]]] = []
    for _ in range(1 if new_tokens > 1 else 7):
        for length in prompts:
            prompt = [int(token) for token in random.integers(0, built.served.vocab, length)]
            greedy = SamplingParams(temperature=0.0)
            number = RequestId(next(NUMBERS))
            engine.submit(Request(number, prompt, new_tokens, greedy, use_cache=False))
        while engine.has_work:
            tape.take_times()
            start = time.perf_counter()
            tokens = sum(progress.token is not None for progress in engine.step())
            took = time.perf_counter() - start
            if tokens == len(prompts):
                steps.append((took, {kind: seconds for kind, (_, seconds) in tape.take_times().items()}))
    if new_tokens > 1:
        steps = steps[2:]  # the first ends the prefill
    steps = sorted(steps, key=lambda step: step[0])[: (len(steps) + 1) // 2]
    kinds = steps[0][1]
    return {
        "tokens_per_step": len(prompts) if new_tokens > 1 else sum(prompts),
        "keys": sum(length + (new_tokens // 2 if new_tokens > 1 else 0) for length in prompts),
        "step": statistics.median(took for took, _ in steps),
        "spread": [min(took for took, _ in steps), max(took for took, _ in steps)],
        "steps": len(steps),
        "operations": {kind: statistics.median(times[kind] for _, times in steps) for kind in kinds},
    }


def show(name: str, case: dict[str, Any], limits: Ceilings, model: Any) -> None:
    operations = case["operations"]
    inside = sum(operations.values())
    low, high = case["spread"]
    print(f"\n{name}: {case['step'] * 1e3:.2f} ms ({low * 1e3:.2f} to {high * 1e3:.2f}, {case['steps']} steps)")
    floors = floors_of(case, limits, model)
    for kind, seconds in sorted(operations.items(), key=lambda item: -item[1]):
        floor = f", floor {floors[kind] * 1e3:.2f}" if kind in floors else ""
        print(f"  {kind:24} {seconds * 1e3:8.3f} ms  {100 * seconds / case['step']:5.1f} %{floor}")
    rest = case["step"] - inside
    print(f"  {'Python and sampling':24} {rest * 1e3:8.3f} ms  {100 * rest / case['step']:5.1f} %")


def floors_of(case: dict[str, Any], limits: Ceilings, model: Any) -> dict[str, float]:
    """Of the products with weights, and of attention: bytes and operations of a plain decoder."""
    config, weights = model.config, model.weights
    rows, keys = case["tokens_per_step"], case["keys"]
    is_prefill = "prefill" in name_of(case)
    last = weights.layers[-1]

    def product(matrices: list[Any], rows: int) -> float:
        flops = sum(2.0 * rows * matrix.shape[0] * matrix.shape[1] for matrix in matrices)
        return limits.seconds(sum(matrix.nbytes for matrix in matrices), flops)

    rest = weights.layers[:-1]
    wanted = 1 if is_prefill else rows
    head = weights.head if config.untied else weights.embed
    size = config.head_size
    seen = keys * (keys + 1) / 2 if is_prefill else keys
    per_key = sum(layer.keys.bytes_per_token for layer in model.memory if layer.keys)
    return {
        "linear": product([m for layer in rest for m in (layer.qkv, layer.out, layer.down)] + [last.qkv], rows),
        "gated_linear": product([layer.gate_up for layer in rest], rows),
        "head: linear": product([last.out, last.down, head], wanted),
        "attention": limits.seconds(keys * per_key, 4.0 * seen * config.num_heads * size * config.num_layers),
    }


def name_of(case: dict[str, Any]) -> str:
    return "prefill" if case["keys"] == case["tokens_per_step"] else "decode"


if __name__ == "__main__":
    main()
