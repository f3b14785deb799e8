"""From a config to a GPU runner: how large the pool is, what is captured, and one sentence where it doesn't fit."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from zerokl.config import Config, num_leaves
from zerokl.errors import ConfigError
from zerokl.models import Model
from zerokl.models.memory import CacheFormat, LayerMemory, kept_as
from zerokl.ops.triton import MAX_LEAVES
from zerokl.ops.work import CHUNK
from zerokl.runner.buckets import MAX_TOKENS, PAGE_SIZE, TOKEN_BUCKETS
from zerokl.runner.cuda import CudaRunner, Options
from zerokl.runner.known_answers import compare_known_answers, digest_of
from zerokl.runner.known_answers_gpu import known_answers
from zerokl.runner.sizes import largest_pools, pool_bytes, pools_of
from zerokl.types import Pools

log = logging.getLogger(__name__)

FAMILY = "sm90"
"""GPUs of one family share their bits: Hopper."""
KEPT = CacheFormat("bfloat16")
DEFAULT_SHARE = 0.85
"""Of the device's memory, for weights and pool; activations, scratch memory and graphs live in the rest."""


def start(model: Model, config: Config, tokens_per_step: int, pools: Pools) -> CudaRunner:
    """A runner with its pools and graphs. Raises ConfigError, EngineError, UnsupportedModel."""
    options = options_of(config, tokens_per_step)
    known_answer_digest()
    began = time.monotonic()
    try:
        runner = CudaRunner(model, pools.num_pages, options, windows=pools.windows, states=pools.states)
    except torch.cuda.OutOfMemoryError as error:
        total = torch.cuda.mem_get_info()[1]
        raise ConfigError(
            f"the GPU's {gigabytes(total)} don't hold {gigabytes(model.weight_bytes)} of weights, a cache pool of "
            f"{gigabytes(kept_bytes(model, pools))} and what a step of {tokens_per_step} tokens needs: "
            "lower --mem-fraction-static, --chunked-prefill-size or --max-total-tokens"
        ) from error
    log.info("GPU ready in %.1f s: %s", time.monotonic() - began, describe(runner))
    return runner


@cache
def known_answer_digest() -> str:
    """Of every kernel's answers on this GPU, for the fingerprint. Raises EngineError if they aren't the known ones."""
    found = known_answers()
    compare_known_answers(found, FAMILY)
    return digest_of(found)


def check(config: Config) -> None:
    """Raise ConfigError for what this GPU can't do, before anything is loaded."""
    if not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no GPU here")
    if config.distributed_executor_backend == "mp" and config.tp > torch.cuda.device_count():
        raise ConfigError(f"--tp {config.tp}: torch finds {torch.cuda.device_count()} GPUs here")
    if num_leaves(config) > MAX_LEAVES * config.tp:
        raise ConfigError(f"--tp-leaves {num_leaves(config)}: a GPU sums up to {MAX_LEAVES} leaves")
    capability = torch.cuda.get_device_capability()
    if capability != (9, 0):
        raise ConfigError(
            f"--device cuda: {torch.cuda.get_device_name()} has compute capability {capability[0]}.{capability[1]}; "
            "known answers exist for 9.0 (Hopper) only"
        )
    if config.page_size != PAGE_SIZE:
        raise ConfigError(f"--page-size {config.page_size}: on the GPU a page has {PAGE_SIZE} token slots")


def options_of(config: Config, tokens_per_step: int) -> Options:
    if tokens_per_step > MAX_TOKENS:
        raise ConfigError(f"--chunked-prefill-size {tokens_per_step} is above {MAX_TOKENS}, the GPU's largest step")
    return Options(
        max_tokens=tokens_per_step,
        max_segments=config.max_running_requests,
        decode_graphs=not config.disable_cuda_graph,
        prefill_graphs=not config.disable_prefill_cuda_graph,
        graph_tokens=graph_tokens(config.cuda_graph_bs),
    )


def graph_tokens(asked: str) -> tuple[int, ...]:
    """'1,8,64' -> the buckets to capture; each number means the bucket that holds it. '': all."""
    if not asked:
        return TOKEN_BUCKETS
    words = asked.replace(",", " ").split()
    if not all(word.isdecimal() and 0 < int(word) <= MAX_TOKENS for word in words):
        raise ConfigError(f"--cuda-graph-bs {asked!r} is not a list of numbers from 1 to {MAX_TOKENS}")
    return tuple(sorted({next(bucket for bucket in TOKEN_BUCKETS if bucket >= int(word)) for word in words}))


def pools_that_fit(model: Model, config: Config) -> Pools:
    """The pools' sizes: `max_total_tokens` if given, else what the static share leaves besides what is there."""
    free, total = torch.cuda.mem_get_info()
    share = config.mem_fraction_static or DEFAULT_SHARE
    budget, running = int(share * total - (total - free)), config.max_running_requests
    memory = kept_as(model.memory, kept_on_gpu(model.cache))
    if config.max_total_tokens:
        pools = pools_of(memory, config.max_total_tokens // PAGE_SIZE, PAGE_SIZE, running)
    else:
        most = max(0, budget) // max(1, smallest_page(memory))
        pools = largest_pools(memory, most, PAGE_SIZE, running, budget)
    if pools.num_pages < 1:
        raise ConfigError(
            f"no room for a cache page: {gigabytes(total)} of GPU memory, {gigabytes(total - free)} in use "
            f"({gigabytes(model.weight_bytes)} of it weights), a static share of {share}: raise --mem-fraction-static"
        )
    return pools


def kept_on_gpu(cache: CacheFormat) -> CacheFormat:
    """How keys and values are kept: in fp8 as the CPU does, else in bfloat16."""
    return cache if cache.dtype == "fp8_e4m3" else KEPT


def smallest_page(memory: Sequence[LayerMemory]) -> int:
    """Bytes that a page of tokens takes at the least, whatever kinds there are."""
    return PAGE_SIZE * sum(layer.keys.bytes_per_token for layer in memory if layer.keys) // 2


def kept_bytes(model: Model, pools: Pools) -> int:
    """Of the pools; convolutions' inputs, which are few, count as if they were float32."""
    return pool_bytes(kept_as(model.memory, kept_on_gpu(model.cache)), pools)


def describe(runner: CudaRunner) -> str:
    graphs = runner.graphs
    missed = f", no memory for {len(graphs.missed)} more" if graphs.missed else ""
    rejected = sum(verdict.differing > 0 for verdict in runner.verdicts)
    return (
        f"{len(graphs.captured)} graphs in {graphs.seconds:.1f} s and {gigabytes(graphs.bytes)}{missed}; "
        f"{len(runner.verdicts)} kernel choices compared, {rejected} rejected"
    )


def facts(runner: CudaRunner) -> dict[str, Any]:
    """For /server_info."""
    graphs = runner.graphs
    return {
        "gpu": torch.cuda.get_device_name(),
        "attention_chunk": CHUNK,
        "cuda_graphs": {
            "captured": sorted(map(name_of, graphs.captured)),
            "no_memory_for": sorted(map(name_of, graphs.missed)),
            "seconds": round(graphs.seconds, 2),
            "bytes": graphs.bytes,
        },
        "kernel_choices": {
            "compared": len(runner.verdicts),
            "rejected": [str(verdict) for verdict in runner.verdicts if verdict.differing],
        },
    }


def name_of(key: Any) -> str:
    """'model 256 short', 'model 8192', 'head 64'."""
    place, kind = key
    if kind == "head":
        return f"head {place:5d}"
    return f"model {place.tokens:5d}" + (" short" if place.is_short else "")


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB"
