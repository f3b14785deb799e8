"""Ranks on GPUs, as threads over the interpreter: the bits of one, and what would break that."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from tests.gpu.device import INTERPRETED
from tests.models.memory import tiny_checkpoint
from tests.models.variants import tokens
from tests.parallel.teams import told
from zerokl.errors import EngineError
from zerokl.ops.triton import exchange
from zerokl.parallel import nccl
from zerokl.parallel.host_group import PeerGone
from zerokl.parallel.peers import PeerGroup
from zerokl.runner.cuda import Options
from zerokl.suites import register_cuda_ci

register_cuda_ci(est_time=10, stage="extra-b", runner_config="1-gpu-small")

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="threads as ranks need the interpreter; see test_tp2.py")

if INTERPRETED:
    from tests.gpu import (
        models,  # noqa: F401 (float32 instead of bfloat16)
        teams,
    )

MODELS: dict[str, dict[str, Any]] = {
    "even": {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1500},
    "uneven": {"num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 1100, "tie_word_embeddings": True},
    "small": {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 600},
}
"""small: rank 1 has no part of the vocabulary."""


@cache
def checkpoint_of(name: str) -> Any:
    return tiny_checkpoint(5, **MODELS[name], max_position_embeddings=512)


def answers(name: str, ranks: int, leaves: int, graphs: bool = False) -> list[Any]:
    options = Options(max_tokens=32, max_segments=4, decode_graphs=graphs, prefill_graphs=graphs, graph_tokens=(2, 16))
    teams.GridExecutor.__call__ = teams.one_at_a_time
    runner = teams.Threads(checkpoint_of(name), ranks, leaves, options, num_pages=4)
    vocabulary = min(1100, MODELS[name]["vocab_size"])
    try:
        return told(runner, [tokens(20, vocabulary), tokens(5, vocabulary)], 2, cut=12)
    finally:
        runner.close()
        teams.GridExecutor.__call__ = teams.launched


@cache
def alone(name: str, leaves: int) -> list[Any]:
    return answers(name, 1, leaves)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_give_the_bits_of_one(name, graphs):
    assert answers(name, 2, 2, graphs) == alone(name, 2)


@pytest.mark.timeout(900)
def test_four_leaves_are_other_bits_whoever_has_them():
    assert answers("even", 2, 4) == alone("even", 4)
    assert alone("even", 4) != alone("even", 2)


@pytest.mark.timeout(900)
def test_partial_sums_that_travel_in_bf16_are_seen(monkeypatch):
    fold = exchange.fold

    def rounded(meeting, shape, *more):
        for one in teams_memory:
            one[: shape[0] * shape[1]] = one[: shape[0] * shape[1]].bfloat16().float()
        return fold(meeting, shape, *more)

    teams_memory: list[torch.Tensor] = []
    connect = teams.ThreadGroup._connect

    def remembering(self, total):
        found = connect(self, total)
        teams_memory.append(found[0])
        return found

    monkeypatch.setattr(teams.ThreadGroup, "_connect", remembering)
    monkeypatch.setattr(exchange, "fold", rounded)
    assert answers("even", 2, 2) != alone("even", 2)


@pytest.mark.timeout(900)
def test_a_sum_in_the_order_of_arrival_is_seen(monkeypatch):
    """The residual first, then what comes: as an all-reduce into the residual stream does."""

    def into_the_residual(meeting, shape, count, bias, y, added):
        size, first = shape[0] * shape[1], (int(meeting.slots[0]) - boards[0][0].data_ptr()) // 4
        for rank in (1, 0):
            y += boards[0][rank][first:][:size].view(shape)
        return y

    boards: list[Any] = []
    made = teams.ThreadGroup.__init__

    def remembering(self, rank, board, barrier):
        made(self, rank, board, barrier)
        boards.append(board)

    monkeypatch.setattr(teams.ThreadGroup, "__init__", remembering)
    monkeypatch.setattr(exchange, "fold", into_the_residual)
    assert answers("even", 2, 2) != alone("even", 2)


@pytest.mark.timeout(900)
def test_a_rank_with_another_plan_is_seen(monkeypatch):
    def swapped(self, plan):
        return plan if len(plan.segments) < 2 else replace(plan, segments=plan.segments[::-1])

    monkeypatch.setattr(teams.Threads, "change_plan", swapped)
    assert answers("even", 2, 2) != alone("even", 2)


def test_ranks_introduce_themselves_and_one_that_is_gone_ends_that():
    store = torch.distributed.HashStore()

    def member(rank: int) -> PeerGroup:
        group = PeerGroup.__new__(PeerGroup)
        group.rank, group.size, group.is_broken, group._store = rank, 2, False, store
        return group

    first, second = member(0), member(1)
    handles = bytes(range(64)), bytes(64)
    with ThreadPoolExecutor(1) as aside:
        told = aside.submit(first._told, "memory", handles[0])
        assert second._told("memory", handles[1]) == list(handles) == told.result(10)
    first.is_broken = True
    with pytest.raises(EngineError, match="a rank is gone"):
        first._told("opened", b"yes")


class Library:
    """NCCL's, whose first call finds the others at once, or not before it is aborted."""

    def __init__(self, waits: bool) -> None:
        self.aborted = threading.Event()
        self._waits = waits

    def ncclCommInitRank(self, *arguments: Any) -> int:  # noqa: N802
        return int(self._waits and self.aborted.wait(5))

    def ncclBroadcast(self, *arguments: Any) -> int:  # noqa: N802
        return 0

    def ncclCommAbort(self, *arguments: Any) -> int:  # noqa: N802
        self.aborted.set()
        return 0


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))


@pytest.mark.usefixtures("no_gpu")
def test_rounds_after_an_abort_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(waits=False)
    monkeypatch.setattr(nccl, "library", lambda: library)
    communicator = nccl.Communicator(bytes(128), 0, 2, lambda: False)
    communicator.broadcast(torch.zeros(4))
    communicator.abort()
    assert library.aborted.wait(5)
    for _ in range(2):
        with ThreadPoolExecutor(1) as pool, pytest.raises(PeerGone):
            pool.submit(communicator.broadcast, torch.zeros(4)).result(5)


@pytest.mark.usefixtures("no_gpu")
def test_a_rank_that_is_gone_while_others_meet_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(waits=True)
    monkeypatch.setattr(nccl, "library", lambda: library)
    gone = threading.Event()
    threading.Timer(0.1, gone.set).start()
    with pytest.raises(PeerGone, match="a rank is gone"):
        nccl.Communicator(bytes(128), 0, 2, gone.is_set)
    library.aborted.set()
