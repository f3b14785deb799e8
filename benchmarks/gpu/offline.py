"""The engine on one GPU without a server: random weights of Qwen3-8B's shape, whole requests, tokens per second.

    python benchmarks/gpu/offline.py [--cases decode-1 decode-16 ...] [--eager] [--library-default]

Prefix cache off, greedy, best of `--repeats`. Prints one JSON line per case and what a step costs where.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from zerokl import ops
from zerokl.cache import Cache
from zerokl.engine.loop import Engine
from zerokl.models import qwen3
from zerokl.models.model import Model
from zerokl.models.weights import Parameters
from zerokl.ops import triton
from zerokl.ops.choices import LIBRARY, Persistent, candidates
from zerokl.ops.shards import cut
from zerokl.ops.triton.admit import cut_leaves
from zerokl.runner import cuda
from zerokl.runner.cuda import CudaRunner, Options
from zerokl.runner.cuda_start import describe
from zerokl.scheduler import Limits, Scheduler
from zerokl.types import Request, RequestId, SamplingParams

QWEN3_8B = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
CASES = {
    # name: (requests, prompt tokens, output tokens)
    "decode-1": (1, 128, 256),
    "decode-16": (16, 128, 256),
    "decode-64": (64, 128, 256),
    "decode-256": (256, 128, 256),
    "prefill-8x4096": (8, 4096, 1),
    "prefill-16x4096": (16, 4096, 1),
    "mixed-128": (128, 1024, 256),
    "decode-1-at-1k": (1, 1024, 64),
    "prefill-8k": (1, 8192, 1),
}


FACTORS = {"nvfp4": 0.4, "fp8": 0.012, "fp8_block": 0.012}
"""One over the size of random codes."""


def random_model(layers: int | None = None, kind: str = "", leaves: int = 1) -> Model:
    config = qwen3.Config.from_checkpoint(QWEN3_8B | ({"num_hidden_layers": layers} if layers else {}))
    axes = config.axes
    E, F, H, K, D, V = (axes[letter] for letter in "EFHKDV")
    generator = torch.Generator(device="cuda").manual_seed(1)

    def matrix(rows: int, columns: int) -> ops.DeviceMatrix:
        values = torch.empty((rows, columns), dtype=torch.bfloat16, device="cuda")
        return ops.DeviceMatrix(values.normal_(std=columns**-0.5, generator=generator))

    def packed(rows: int, columns: int, unit: int = 0) -> ops.AnyMatrix:
        """As ModelOpt leaves them: all of a layer's matrices. `unit`: of a cut, where sums could be shared."""
        if not kind:
            ends = tuple(cut(columns, unit, leaves)[1:]) if unit and leaves > 1 else ()
            return replace(matrix(rows, columns), ends=ends)
        nvfp4, blocks = kind == "nvfp4", kind == "fp8_block"
        shape = (rows, columns // 2 if nvfp4 else columns)
        codes = torch.randint(0, 256, shape, generator=generator, device="cuda", dtype=torch.uint8)
        codes = codes if nvfp4 else torch.where((codes & 127) > 120, codes - 16, codes)
        scales = torch.full((rows, columns // 16), 0x38, dtype=torch.uint8, device="cuda") if nvfp4 else None
        factors = torch.full((rows,), FACTORS[kind] * columns**-0.5, device="cuda")
        if blocks:
            scales, factors = factors[0].expand(-(-rows // 16), -(-columns // 128)).contiguous(), None
        if unit and leaves > 1:
            ends = tuple(cut(columns, unit, leaves)[1:])
            return cut_leaves(kind, codes, scales, factors, "cuda", False, ends)
        return triton.pack_quantised(kind, codes, scales, factors, "cuda", False)

    def ones(size: int):
        return torch.ones(size, device="cuda")

    weights = Parameters(embed=matrix(V, E), norm=ones(E), head=matrix(V, E), layers=[])
    for _ in range(config.num_layers):
        biases = dict.fromkeys(("qkv_bias", "out_bias", "gate_up_bias", "down_bias"))
        norms = {"input_norm": ones(E), "mlp_norm": ones(E), "q_norm": ones(D), "k_norm": ones(D)}
        matrices = {"qkv": packed((H + 2 * K) * D, E), "out": packed(E, H * D, D)}
        matrices |= {"gate_up": packed(2 * F, E), "down": packed(E, F, 16)}
        weights.layers.append(Parameters(**biases, **norms, **matrices))
    return Model("Qwen3ForCausalLM", qwen3, config, weights, config.context_length)


def without_admission() -> None:
    """An experiment: the library by its own heuristics, split-K included, wherever nothing of ours is taken first."""

    def take_all(choices, kinds, buckets, *_):
        for shape in (kind._replace(rows=rows) for kind in kinds for rows in buckets):
            first = candidates(shape)[0]
            choices.admitted[shape] = first if isinstance(first, Persistent) or shape.biased else LIBRARY
        return []

    torch.backends.cuda.preferred_blas_library("cublas")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    cuda.forbid_split_k = lambda: None
    cuda.admit = take_all


def run(runner: CudaRunner, requests: int, prompt: int, outputs: int, budget: int) -> tuple[float, int]:
    """(seconds, steps)."""
    limits = Limits(
        context_length=40960, max_running_requests=256, max_queued_requests=1000, chunked_prefill_size=budget
    )
    engine = Engine(Scheduler(limits, Cache(runner.num_pages, 64, False), 1), runner)
    random = np.random.default_rng(0)
    for number in range(requests):
        tokens = random.integers(0, 151936, prompt).tolist()
        engine.submit(Request(RequestId(number), tokens, outputs, SamplingParams(temperature=0.0)))
    torch.cuda.synchronize()
    began, steps = time.perf_counter(), 0
    while engine.has_work:
        engine.step()
        steps += 1
    torch.cuda.synchronize()
    return time.perf_counter() - began, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--kind", choices=["", *FACTORS], default="", help="of the layers' weights; default: bfloat16")
    parser.add_argument("--leaves", type=int, default=1, help="of sums that ranks could share")
    parser.add_argument("--pages", type=int, default=8000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--budget", type=int, default=8192)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--profile", nargs="*", default=[], help="cases whose kernels torch's profiler times")
    parser.add_argument("--library-default", action="store_true", help="no admission, no promise: what bits cost")
    given = parser.parse_args()
    if given.library_default:
        without_admission()
    began = time.perf_counter()
    model = random_model(given.layers, given.kind, given.leaves)
    print(json.dumps({"weight_bytes": model.weight_bytes}), flush=True)
    loaded = time.perf_counter()
    graphs = not given.eager
    runner = CudaRunner(
        model, given.pages, Options(max_tokens=given.budget, decode_graphs=graphs, prefill_graphs=graphs)
    )
    ready = time.perf_counter()
    print(json.dumps({"weights_s": round(loaded - began, 1), "runner_s": round(ready - loaded, 1)}), flush=True)
    print(json.dumps({"runner": describe(runner)}), flush=True)
    rejected = sorted({str((v.shape._replace(rows=0), v.way)) for v in runner.verdicts if v.differing})
    print(json.dumps({"rejected": rejected}), flush=True)
    for name in given.cases:
        requests, prompt, outputs = CASES[name]
        seconds, steps = min(run(runner, requests, prompt, outputs, given.budget) for _ in range(given.repeats))
        line = {"case": name, "seconds": round(seconds, 3), "steps": steps, "ms_per_step": seconds / steps * 1e3}
        line["tokens/s out"] = round(requests * outputs / seconds, 1)
        line["tokens/s in"] = round(requests * prompt / seconds)
        print(json.dumps(line), flush=True)
    for name in given.profile:
        print(json.dumps({"profile": name}), flush=True)
        profile(runner, *CASES[name], given.budget)


def profile(runner: CudaRunner, requests: int, prompt: int, outputs: int, budget: int) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    with profiler(activities=[ProfilerActivity.CUDA]) as found:
        run(runner, requests, prompt, min(outputs, 16), budget)
    print(found.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=60), flush=True)
    print_spent(found.events())


def print_spent(events: Iterable[Any]) -> None:
    """From the end of one kernel to the end of the next: their own durations overlap, as they begin early.

    Of whole steps, the first ones left out; nothing for a case of fewer steps.
    """
    kernels = sorted((e.time_range.end, e.name) for e in events if str(e.device_type).endswith("CUDA"))
    starts = [place for place, (_, name) in enumerate(kernels) if name.startswith("embedding_rows")][4:]
    if len(starts) < 2:
        return
    spent: dict[str, list[float]] = defaultdict(list)
    for place in range(starts[0] + 1, starts[-1] + 1):
        spent[kernels[place][1]].append(kernels[place][0] - kernels[place - 1][0])
    steps = len(starts) - 1
    for name, times in sorted(spent.items(), key=lambda item: -sum(item[1])):
        line = {"kernel": name[:60], "us a step": round(sum(times) / steps, 1), "times": round(len(times) / steps, 1)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
