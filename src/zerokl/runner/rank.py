"""A model on several ranks: what rank 0 does besides running its own part, and what the others do instead of planning.

rank 0    plan ─▶ to every rank ─▶ its own part of the step ─▶ logits of the whole vocabulary ─▶ draws and scores
others    plan ─▶ their part of the same step, then the next plan
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from zerokl import _native, checkpoints, models
from zerokl.config import Config, num_leaves
from zerokl.errors import EngineError, ZeroklError
from zerokl.models import Team
from zerokl.parallel import Ranks, SharedGroup
from zerokl.parallel.channel import Channel, digest
from zerokl.parallel.launch import PEER_GONE
from zerokl.parallel.shared import PeerGone
from zerokl.runner.cpu import CpuRunner, Done
from zerokl.runner.memory import resident_memory
from zerokl.runner.sizes import pool_bytes
from zerokl.types import Pools, StepPlan


class LeadingRunner:
    """Rank 0's: a `types.StepRunner` over all ranks."""

    lag = 0

    def __init__(self, own: CpuRunner, ranks: Ranks, compare_plans: bool) -> None:
        """`compare_plans`: at every step all ranks compare digests of their plans."""
        self.own = own
        self.ranks = ranks
        self._compare = compare_plans

    def submit(self, plan: StepPlan) -> Done:
        """Raises EngineError, also if a rank is gone: then the others are ended, and nothing can be run any more."""
        self.ranks.plan(plan)
        try:
            if self._compare:
                compare(self.ranks.group, plan)
            return self.own.submit(plan)
        except PeerGone as error:
            raise self.ranks.failure() from error

    def close(self) -> None:
        """Ends the other ranks."""
        self.ranks.close()


def compare(group: SharedGroup, plan: StepPlan) -> None:
    """Raise EngineError, on every rank, unless all have the same plan."""
    if not group.agree(digest(plan)):
        raise EngineError(f"ranks have different plans for step {plan.step}")


def serve_rank(group: SharedGroup, channel: Channel) -> int:
    """A rank's life: load, say so, follow plans until rank 0 is gone. Its exit status.

    Raises EngineError and what else a step may raise: then this rank is to end, and so the whole group does.
    """
    began = time.monotonic()
    setup = channel.receive().setup
    if setup is None:
        return 0
    config = msgspec.convert(setup, Config)
    try:
        runner = rank_runner(config, group, channel)
    except ZeroklError as error:
        channel.answer(error=str(error))
        return 1
    if runner is None:
        return 0
    channel.answer(**facts_of(runner, began))
    try:
        while (plan := channel.receive().plan) is not None:
            if compares_plans(config):
                compare(group, plan)
            runner.follow(plan)
    except PeerGone:
        return PEER_GONE
    return 0


def rank_runner(config: Config, group: SharedGroup, channel: Channel) -> CpuRunner | None:
    """This rank's part of the model, and pools of the sizes that rank 0 found; None if rank 0 is gone."""
    _native.set_threads(threads_of_rank(config))
    checkpoint = checkpoints.open(config.model, load_format=config.load_format, shapes_of=models.tensor_shapes)
    model = models.load(checkpoint, config, Team(num_leaves(config), group))
    given = channel.receive().setup
    if given is None:
        return None
    pools = msgspec.convert(given, Pools)
    return CpuRunner(
        model,
        pools.num_pages,
        pools.page_size,
        windows=pools.windows,
        states=pools.states,
        host=pools.host,
    )


def threads_of_rank(config: Config) -> int:
    """An even share of the threads that the whole server may use."""
    return max(1, (config.threads or _native.threads()) // config.tp)


def compares_plans(config: Config) -> bool:
    return config.log_level == "debug"


def facts_of(runner: CpuRunner, began: float) -> Mapping[str, Any]:
    """What a rank takes: for /server_info."""
    model = runner.model
    pools = Pools(runner.num_pages, runner.page_size, runner.window_pools, runner.state_pool)
    return {
        "start_s": round(time.monotonic() - began, 2),
        "weight_bytes": model.weight_bytes,
        "kv_bytes": pool_bytes(model.memory, pools),
        "resident_bytes": resident_memory(),
    }
