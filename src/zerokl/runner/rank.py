"""A model on several ranks: what rank 0 does besides running its own part, and what the others do instead of planning.

rank 0    plan ─▶ to every rank ─▶ its own part of the step ─▶ logits of the whole vocabulary ─▶ draws and scores
others    plan ─▶ their part of the same step, then the next plan
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

import msgspec
from msgspec import Struct

from zerokl import _native, checkpoints, models
from zerokl.config import Config, num_leaves
from zerokl.errors import ConfigError, EngineError, ZeroklError
from zerokl.models import Team
from zerokl.parallel import HostGroup, Ranks, group_of
from zerokl.parallel.channel import Channel, Message, digest
from zerokl.parallel.host_group import PeerGone
from zerokl.parallel.launch import Address
from zerokl.parallel.ranks import PEER_GONE
from zerokl.runner.cpu import CpuRunner
from zerokl.runner.memory import resident_memory
from zerokl.runner.sizes import pool_bytes, tokens_per_step
from zerokl.types import Pending, Pools, StepPlan, StepResult, StepRunner

log = logging.getLogger(__name__)


class LeadingRunner:
    """Rank 0's: a `types.StepRunner` over all ranks."""

    def __init__(self, own: StepRunner, ranks: Ranks, compare_plans: bool, group: Any = None) -> None:
        """`compare_plans`: at every step all ranks compare digests of their plans. `group`: of GPUs."""
        self.own, self.lag = own, own.lag
        self.ranks = ranks
        self._compare = compare_plans
        self._group = group

    def submit(self, plan: StepPlan) -> Pending:
        """Raises EngineError, also if a rank is gone: then the others are ended, and nothing can be run any more."""
        self.ranks.plan(plan)
        try:
            if self._compare:
                compare(self.ranks.group, plan)
            pending = self.own.submit(plan)
        except PeerGone as error:
            raise self.ranks.failure() from error
        return pending if self._group is None else SharedStep(pending, self)

    def check(self) -> None:
        """Raises EngineError if a rank is gone: what GPUs computed since is nothing."""
        if self._group.is_broken:
            raise self.ranks.failure()

    def close(self) -> None:
        """Ends the other ranks."""
        self.ranks.close()
        if self._group is not None:
            self._group.close()


class SharedStep(Struct, frozen=True):
    """A step on several GPUs."""

    pending: Pending
    runner: LeadingRunner

    def result(self) -> StepResult:
        """Raises EngineError or CUDA's RuntimeError; for a rank that is gone if one is."""
        try:
            found = self.pending.result()
        except (EngineError, RuntimeError):
            self.runner.check()
            raise
        self.runner.check()
        return found


def compare(group: HostGroup, plan: StepPlan) -> None:
    """Raise EngineError, on every rank, unless all have the same plan."""
    if not group.agree(digest(plan)):
        raise EngineError(f"ranks have different plans for step {plan.step}")


def serve_rank(
    group: HostGroup,
    channel: Channel,
    store: Address,
    model: str = "",
    status: Callable[[bool], int] = lambda is_peer_gone: PEER_GONE if is_peer_gone else 0,
) -> int:
    """A rank's life: load, say so, follow plans until rank 0 is gone.

    `store`: where ranks on GPUs meet first; `model`: where it lies on this machine, if that is another than rank 0's;
    `status`: what to end with when a peer is gone, or when rank 0 has closed the channel.
    Raises EngineError and what else a step may raise: then this rank is to end, and so the whole group does.
    """
    began = time.monotonic()
    setup = channel.receive().setup
    if setup is None:
        return 0
    config = msgspec.convert(setup, Config)
    config = dataclasses.replace(config, model=model or config.model)
    source: Channel | Mailbox = channel if config.device == "cpu" else Mailbox(channel, lambda: status(False))
    try:
        runner = rank_runner(config, group, source, store)
    except PeerGone as error:
        log.info("this rank ends: %s", error)
        return status(True)
    except ZeroklError as error:
        channel.answer(error=str(error))
        return 1
    if runner is None:
        return status(False)
    channel.answer(**facts_of(runner, began))
    try:
        while (plan := source.receive().plan) is not None:
            if compares_plans(config):
                compare(group, plan)
            runner.follow(plan)
    except PeerGone as error:
        log.info("this rank ends: %s", error)
        return status(True)
    return status(False)


class Mailbox:
    """What rank 0 says, read by a thread: a rank on a GPU that waits for a peer sees only so that rank 0 is gone.

    Then it ends at once, whatever its GPU is doing: nothing of it is worth keeping.
    """

    def __init__(self, channel: Channel, status: Callable[[], int]) -> None:
        """`status`: what to end with."""
        self._messages: SimpleQueue[Message] = SimpleQueue()

        def read() -> None:
            while (message := channel.receive()) != Message():
                self._messages.put(message)
            os._exit(status())

        threading.Thread(target=read, name="plans", daemon=True).start()

    def receive(self) -> Message:
        return self._messages.get()


def rank_runner(config: Config, group: HostGroup, channel: Channel | Mailbox, store: Address) -> Any:
    """This rank's part of the model, and pools of the sizes that rank 0 found; None if rank 0 is gone."""
    _native.set_threads(threads_of_rank(config, group.local_size))
    checkpoint = checkpoints.open(
        config.model, load_format=config.load_format, shapes_of=models.tensor_shapes, quantization=config.quantization
    )
    if not group.shares_files:
        check_same_weights(group, checkpoint.digest)
    own = group_of(config.device, group, store)
    model = models.load(checkpoint, config, Team(num_leaves(config), own))
    given = channel.receive().setup
    if given is None:
        return None
    pools = msgspec.convert(given, Pools)
    if config.device == "cuda":
        from zerokl.runner import cuda_start

        return cuda_start.start(model, config, tokens_per_step(config), pools)
    return CpuRunner(
        model,
        pools.num_pages,
        pools.page_size,
        windows=pools.windows,
        states=pools.states,
        host=pools.host,
    )


def check_same_weights(group: HostGroup, digest: str) -> None:
    """Raise ConfigError, on every rank, unless all have read the same files. Raises PeerGone."""
    if not group.agree(bytes.fromhex(digest)):
        raise ConfigError(f"rank {group.rank} of {group.size}: ranks have different weights (here: {digest[:16]}...)")


def threads_of_rank(config: Config, local_ranks: int) -> int:
    """An even share of the threads that the server may use on this machine."""
    return max(1, (config.threads or _native.threads()) // local_ranks)


def compares_plans(config: Config) -> bool:
    return config.log_level == "debug"


def facts_of(runner: Any, began: float) -> Mapping[str, Any]:
    """What a rank takes: for /server_info."""
    facts = {
        "start_s": round(time.monotonic() - began, 2),
        "weight_bytes": runner.model.weight_bytes,
        "resident_bytes": resident_memory(),
    }
    if isinstance(runner, CpuRunner):
        pools = Pools(runner.num_pages, runner.page_size, runner.window_pools, runner.state_pool)
        facts["kv_bytes"] = pool_bytes(runner.model.memory, pools)
    else:
        facts["gpu_bytes"] = runner.memory_in_use()
    return facts
