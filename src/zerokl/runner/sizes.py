"""How much of each kind of memory there is, from one budget of bytes: pages, pages of sliding kinds, state slots.

full pages            n                          the pool's size in tokens
sliding pages         half of n, or n            half, because requests let them go; n where no layer sees every key
checkpoints           n · page / interval        so that they run out no sooner than pages do
live slots            the most requests that run, and no more than a quarter of the bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from msgspec import Struct
from msgspec.structs import replace

from zerokl.config import Config
from zerokl.errors import ConfigError
from zerokl.models import Model
from zerokl.models.memory import FLOAT_BYTES, Conv, LayerMemory, Recurrent, convolution_width, windows_of
from zerokl.runner.kv import DEFAULT_SEQUENCES, DEFAULT_SHARE, free_for, pages_that_fit
from zerokl.types import Pools, StatePool, WindowPool

CONVOLUTION_INTERVAL = 64
"""Tokens between checkpoints where layers only remember inputs: the smallest interval, as they are small."""
CHECKPOINT_RATIO = 4
"""A recurrent state's interval grows until a checkpoint takes no more than this many times the keys in between ..."""
LONGEST_INTERVAL = 1024
"""... or until it is this many tokens."""
SLIDING_WINDOWS = 4
"""A small pool holds the windows of at least this many requests, if it holds so many tokens at all."""
LIVE_SHARE = 4


def pools_for(model: Model, config: Config) -> Pools:
    """The pools' sizes: `max_total_tokens` if given, else what the machine and the context length suggest.

    Raises ConfigError if not even one page fits.
    """
    ratio = config.hicache_ratio if config.enable_hierarchical_cache else 0.0
    pools = hybrid_pools(model, config, ratio) if model.declares_memory else plain_pools(model, config, ratio)
    return replace(pools, host=host_pools(pools, ratio)) if ratio else pools


def plain_pools(model: Model, config: Config, ratio: float) -> Pools:
    num_pages = pages_that_fit(model, config)
    if not config.max_total_tokens:
        num_pages = max(1, int(num_pages / (1 + ratio)))
    return Pools(num_pages, config.page_size)


def hybrid_pools(model: Model, config: Config, ratio: float) -> Pools:
    most, running = model.context_length * DEFAULT_SEQUENCES // config.page_size, config.max_running_requests
    if config.max_total_tokens:
        num_pages = config.max_total_tokens // config.page_size
        pools = pools_of(model.memory, num_pages, config.page_size, running)
    else:
        budget = pool_budget(model, config.mem_fraction_static, free_for(model))
        pools = largest_pools(model.memory, most, config.page_size, running, int(budget / (1 + ratio)))
    if not pools.num_pages:
        raise ConfigError(
            f"the cache pool would have less than one page of {config.page_size} token slots: "
            "raise --max-total-tokens, lower --page-size or free memory"
        )
    return pools


def host_pools(pools: Pools, ratio: float) -> Pools:
    """`ratio` places on the host for every one on the device."""
    windows = tuple(WindowPool(pool.window, int(pool.num_pages * ratio)) for pool in pools.windows)
    states = pools.states and StatePool(pools.states.interval, 0, int(pools.states.num_checkpoints * ratio))
    return Pools(int(pools.num_pages * ratio), pools.page_size, windows, states)


def pools_of(
    memory: Sequence[LayerMemory], num_pages: int, page_size: int, max_running: int, budget: int | None = None
) -> Pools:
    """Every kind's size for so many full pages; with a `budget`, live slots take no more than their share of it."""
    windows = tuple(WindowPool(one, window_pages(memory, one, num_pages, page_size)) for one in windows_of(memory))
    if not any(layer.states for layer in memory):
        return Pools(num_pages, page_size, windows)
    interval = checkpoint_interval(memory, page_size)
    num_live = min(max_running, num_pages)
    if budget is not None:
        num_live = min(num_live, budget // LIVE_SHARE // bytes_per_sequence(memory))
    states = StatePool(interval, max(1, num_live), max(1, num_pages * page_size // interval))
    return Pools(num_pages, page_size, windows, states)


def largest_pools(memory: Sequence[LayerMemory], most: int, page_size: int, max_running: int, budget: int) -> Pools:
    """The largest that take no more than `budget` bytes, of at most `most` full pages; of none if nothing fits."""
    fits, too_many = 0, most + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if pool_bytes(memory, pools_of(memory, middle, page_size, max_running, budget)) <= budget:
            fits = middle
        else:
            too_many = middle
    return pools_of(memory, fits, page_size, max_running, budget)


def pool_budget(model: Model, fraction: float | None, free_bytes: int) -> int:
    """Bytes for all pools: a share of what is free, or what `fraction` of weights and pools together leaves."""
    if fraction is None:
        return free_bytes // DEFAULT_SHARE
    return max(0, int(fraction * (free_bytes + model.weight_bytes)) - model.weight_bytes)


def pool_bytes(memory: Sequence[LayerMemory], pools: Pools) -> int:
    """Of all pools together, the host's too."""
    full = pools.num_pages * pools.page_size * key_bytes(memory, None)
    sliding = sum(pool.num_pages * pools.page_size * key_bytes(memory, pool.window) for pool in pools.windows)
    host = pool_bytes(memory, pools.host) if pools.host else 0
    if pools.states is None:
        return full + sliding + host
    live = pools.states.num_live * bytes_per_sequence(memory)
    return full + sliding + host + live + pools.states.num_checkpoints * bytes_per_checkpoint(memory)


def key_bytes(memory: Sequence[LayerMemory], window: int | None) -> int:
    """Bytes per token of the layers that see every key (None), or that see this window."""
    return sum(layer.keys.bytes_per_token for layer in memory if layer.keys and layer.keys.window == window)


def bytes_per_checkpoint(memory: Sequence[LayerMemory]) -> int:
    return sum(spec.state_bytes for layer in memory for spec in layer.states)


def bytes_per_sequence(memory: Sequence[LayerMemory]) -> int:
    """Of a live slot: the states, and what recurrent layers keep of an unfinished chunk."""
    recurrent = (spec for layer in memory for spec in layer.states if isinstance(spec, Recurrent))
    return bytes_per_checkpoint(memory) + sum(spec.input_bytes for spec in recurrent)


class Figures(Struct, frozen=True):
    """What a model takes to remember, as /server_info and --dry-run say it."""

    bytes_per_token: int
    """Of the layers that see every key."""
    bytes_per_sliding_token: dict[str, int]
    """By window, of the layers that see it."""
    bytes_per_window: int
    """Of all windows' keys before a checkpoint, which must be there with it."""
    bytes_per_checkpoint: int
    bytes_per_sequence: int
    """Of its states, besides its keys."""
    convolution_width: int


def figures(memory: Sequence[LayerMemory], float_bytes: int = FLOAT_BYTES) -> Figures:
    """`float_bytes`: of keys, values and convolutions' inputs; recurrent states are float32 everywhere."""

    def scaled(num_bytes: int) -> int:
        return num_bytes * float_bytes // FLOAT_BYTES

    def kept(num_bytes: int) -> int:
        """Of keys, which are small already where a type is named for them."""
        return scaled(num_bytes) if all(not one.keys or one.keys.dtype == "float32" for one in memory) else num_bytes

    sliding = {window: kept(key_bytes(memory, window)) for window in windows_of(memory)}
    convolved = sum(one.state_bytes for layer in memory for one in layer.states if isinstance(one, Conv))
    saved = convolved - scaled(convolved)
    return Figures(
        bytes_per_token=kept(key_bytes(memory, None)),
        bytes_per_sliding_token={str(window): size for window, size in sliding.items()},
        bytes_per_window=sum((window - 1) * size for window, size in sliding.items()),
        bytes_per_checkpoint=bytes_per_checkpoint(memory) - saved,
        bytes_per_sequence=bytes_per_sequence(memory) - saved,
        convolution_width=convolution_width(memory),
    )


def window_pages(memory: Sequence[LayerMemory], window: int, num_pages: int, page_size: int) -> int:
    if not key_bytes(memory, None):
        return num_pages
    of_one = -(-(window - 1) // page_size) + 1
    return min(num_pages, max(num_pages // 2, SLIDING_WINDOWS * of_one))


def checkpoint_interval(memory: Sequence[LayerMemory], page_size: int) -> int:
    """Tokens between checkpoints: a multiple of the page and of every chunk, chosen from bytes."""
    chunks = [spec.chunk for layer in memory for spec in layer.states if isinstance(spec, Recurrent)]
    if not chunks:
        return page_size * -(-CONVOLUTION_INTERVAL // page_size)
    keys = sum(layer.keys.bytes_per_token for layer in memory if layer.keys)
    interval = lcm(page_size, *chunks)
    while bytes_per_checkpoint(memory) > CHECKPOINT_RATIO * keys * interval and 2 * interval <= LONGEST_INTERVAL:
        interval *= 2
    return interval


TOKENS_PER_STEP = {"cpu": 512, "cuda": 8192}
"""Token budget where the config names none."""


def tokens_per_step(config: Config) -> int:
    """The token budget of one step."""
    return config.chunked_prefill_size or TOKENS_PER_STEP[config.device]
