"""Ranks as threads over Triton's interpreter: everything is real but the processes, the GPUs and how they wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import torch
from triton.runtime.interpreter import GridExecutor

from zerokl import models
from zerokl.config import Config
from zerokl.models import Model, Team
from zerokl.ops.triton.exchange import Meeting
from zerokl.parallel.channel import Message, encode_plan
from zerokl.parallel.peers import PeerGroup
from zerokl.runner.cuda import CudaRunner, Options
from zerokl.types import StepPlan, StepResult

LAUNCH = threading.Lock()
"""The interpreter keeps what it runs in globals."""
launched = GridExecutor.__call__


def one_at_a_time(self: GridExecutor, *arguments: Any, **more: Any) -> Any:
    with LAUNCH:
        return launched(self, *arguments, **more)


class ThreadGroup(PeerGroup):
    """A peer group whose members meet on the host, before a kernel that then need not wait."""

    def __init__(self, rank: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.device, self.way = rank, len(board), "cpu", "peer"
        self.board, self.barrier = board, barrier
        self.is_broken, self._half = False, 0
        self._failed = torch.zeros(1, dtype=torch.int32)
        self._nccl = None

    def _connect(self, total: int) -> tuple[Any, Any, list[int]]:
        memory = self.board[self.rank] = torch.full((total,), float("nan"))
        self.barrier.wait(600)
        return memory, self.board[0], [one.data_ptr() for one in self.board]

    def _meeting(self, slots: Any) -> Meeting:
        return Meeting(slots, self._flags, self._counters, self._failed, self.rank, self.size, waits=False)

    def begin(self) -> None:
        self._half = 0
        self.barrier.wait(600)

    def _turn(self, size: int) -> Meeting:
        self.barrier.wait(600)
        return super()._turn(size)


class Threads:
    """A runner over ranks, as in `tests/parallel/teams.py`."""

    def __init__(self, checkpoint: Any, ranks: int, leaves: int, options: Options, num_pages: int) -> None:
        self.pool = ThreadPoolExecutor(ranks)
        board, barrier = [None] * ranks, threading.Barrier(ranks)
        config = Config(device="cuda")

        def runner_of(rank: int) -> CudaRunner:
            team = Team(leaves, ThreadGroup(rank, board, barrier) if ranks > 1 else None)
            return CudaRunner(models.load(checkpoint, config, team), num_pages, options, fill=float("nan"))

        self.runners = list(self.pool.map(runner_of, range(ranks)))

    def change_plan(self, plan: StepPlan) -> StepPlan:
        """What a rank makes of it: for planted defects."""
        return plan

    @property
    def model(self) -> Model:
        return self.runners[0].model

    def submit(self, plan: StepPlan) -> StepResult:
        body = encode_plan(plan)

        def run(rank: int) -> StepResult | None:
            if rank == 0:
                return self.runners[0].submit(plan).result()
            own = msgspec.msgpack.decode(body, type=Message).plan
            assert own is not None
            self.runners[rank].follow(self.change_plan(own))
            return None

        futures = [self.pool.submit(run, rank) for rank in range(len(self.runners))]
        results = [future.result(900) for future in futures]
        result = results[0]
        assert result is not None
        return result

    def close(self) -> None:
        self.pool.shutdown()
