"""A runner for the config's device, and what the fingerprint and /server_info say of it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, to_builtins

from zerokl import _native
from zerokl.config import Config
from zerokl.errors import ZeroklError
from zerokl.models import Model
from zerokl.models.memory import CacheFormat
from zerokl.ops.attention import CHUNK
from zerokl.ops.work import CHUNK as KEYS_PER_CHUNK
from zerokl.runner.cpu import CpuRunner
from zerokl.runner.known_answers import known_answer_digest
from zerokl.runner.known_answers_sm90 import FAMILY, family_digest
from zerokl.runner.sizes import pool_bytes, pools_for, tokens_per_step
from zerokl.types import Pools, StepRunner

if TYPE_CHECKING:
    from zerokl.parallel import Ranks

KEPT_FLOAT_BYTES = {"cpu": 4, "cuda": 2}
"""Of a key, a value or a convolution's input in the cache: float32, or bfloat16."""


class Numerics(Struct, frozen=True):
    """What of a device can move a bit: its part of the fingerprint."""

    attention_chunk: int
    known_answers: str
    activation_dtype: str = "float32"
    kv_dtype: str = "float32"
    device_family: str = "cpu"


class Started(Struct, frozen=True):
    runner: StepRunner
    pools: Pools
    kv_bytes: int
    numerics: Numerics
    facts: dict[str, Any] = field(default_factory=dict)


def start(model: Model, config: Config, ranks: Ranks | None = None) -> Started:
    """A runner with its pool; with `ranks`, over all of them.

    Raises ConfigError, UnsupportedModel, and EngineError for other than the known bits or a rank that ended.
    """
    return start_on_gpu(model, config, ranks) if config.device == "cuda" else start_on_cpu(model, config, ranks)


def start_on_cpu(model: Model, config: Config, ranks: Ranks | None) -> Started:
    pools = pools_for(model, config)
    if ranks is not None:
        ranks.setup(to_builtins(pools))
    runner = CpuRunner(
        model,
        pools.num_pages,
        pools.page_size,
        windows=pools.windows,
        states=pools.states,
        host=pools.host,
        processed=config.logprobs_mode == "processed",
    )
    facts: dict[str, Any] = {"isa": _native.isa(), "threads": _native.threads()}
    if ranks is not None:
        facts |= {"tp": config.tp, "other_ranks": ranks.ready()}
    return Started(
        leading(runner, ranks, config),
        pools,
        pool_bytes(model.memory, pools),
        cpu_numerics(kv_dtype(model.cache), model.numerics),
        facts,
    )


def leading(runner: StepRunner, ranks: Ranks | None, config: Config, group: Any = None) -> StepRunner:
    """The runner, over all ranks; what leads them is loaded where there are any."""
    if ranks is None:
        return runner
    from zerokl.runner.rank import LeadingRunner, compares_plans

    return LeadingRunner(runner, ranks, compares_plans(config), group)


def cpu_numerics(kept: str = "float32", numerics: str = "cpu") -> Numerics:
    """`numerics`: as a `Model`'s. A GPU's bits have the GPU's own fingerprint."""
    if numerics == "sm90":
        return Numerics(KEYS_PER_CHUNK, family_digest(), "bfloat16", kept, FAMILY)
    return Numerics(CHUNK, known_answer_digest(), kv_dtype=kept)


def kv_dtype(cache: CacheFormat) -> str:
    """How keys and values are kept, and the digest of their scales where these aren't 1."""
    if all(one == (1.0, 1.0) for one in cache.scales):
        return cache.dtype
    return f"{cache.dtype} {hashlib.sha256(repr(cache.scales).encode()).hexdigest()[:16]}"


def runner_on_gpu(model: Model, config: Config, pools: Pools, ranks: Ranks | None) -> Any:
    """Rank 0's. Raises for the rank that is to blame if another one is gone."""
    from zerokl.parallel.host_group import PeerGone
    from zerokl.runner import cuda_start

    try:
        return cuda_start.start(model, config, tokens_per_step(config), pools)
    except (ZeroklError, RuntimeError) as error:
        if ranks is not None and model.team.group.is_broken:
            ranks.ready()
        if ranks is not None and isinstance(error, PeerGone):
            raise ranks.failure() from error
        raise


def start_on_gpu(model: Model, config: Config, ranks: Ranks | None) -> Started:
    from zerokl.runner import cuda_start

    pools, group = cuda_start.pools_that_fit(model, config), model.team.group
    if ranks is not None:
        ranks.setup(to_builtins(pools))
        ranks.watch(group.abort)
    try:
        runner = runner_on_gpu(model, config, pools, ranks)
        facts = cuda_start.facts(runner)
        if ranks is not None:
            facts |= {"tp": config.tp, "exchange": group.way, "other_ranks": ranks.ready()}
            group.all_have_met()
    except BaseException:
        if ranks is not None:
            ranks.close(in_order=False)
            group.close()  # nobody reads its memory any more
        raise
    kept = kv_dtype(cuda_start.kept_on_gpu(model.cache))
    numerics = Numerics(KEYS_PER_CHUNK, cuda_start.known_answer_digest(), "bfloat16", kept, cuda_start.FAMILY)
    return Started(
        leading(runner, ranks, config, group),
        pools,
        cuda_start.kept_bytes(model, pools),
        numerics,
        facts,
    )
