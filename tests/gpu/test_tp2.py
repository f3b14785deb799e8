"""Two GPUs: ranks give the bits of one, and end together. Skipped, and counted, where there are fewer."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.gpu.ranks import HEADS, PROMPTS, SHARED_GPUS, bits_of, need, ranks_of, told
from tests.models.families import servable_family
from tests.parallel.test_processes import processes
from zerokl import LLM
from zerokl.errors import EngineError
from zerokl.parallel import peers
from zerokl.runner.graphs import Graphs
from zerokl.suites import register_cuda_ci

register_cuda_ci(est_time=120, stage="extra-b", runner_config="1-gpu-small")

pytestmark = [pytest.mark.device, pytest.mark.timeout(300), SHARED_GPUS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("name", HEADS)
def test_two_gpus_give_the_bits_of_one(folder: Path, name: str) -> None:
    need(2)
    assert bits_of(folder, name, tp=2, leaves=2) == bits_of(folder, name, tp=1, leaves=2)


def test_a_process_may_have_several_groups_and_be_in_one_of_torch(folder: Path) -> None:
    """A trainer's, say: its own group is of another size, and it asks two engines in turns."""
    need(2)
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with ranks_of(folder, "even", 2, 2) as first:
            expected = told(first)
            with ranks_of(folder, "one-key-head", 2, 2) as second:
                other = told(second)
                assert told(first) == expected
                assert told(second) == other
        with ranks_of(folder, "even", 2, 2) as again:
            assert told(again) == expected
    finally:
        dist.destroy_process_group()


def test_two_gpus_share_eight_leaves_with_and_without_graphs(folder: Path) -> None:
    need(2)
    alone = bits_of(folder, "even", tp=1, leaves=8)
    assert bits_of(folder, "even", tp=2, leaves=8, log_level="debug") == alone
    assert bits_of(folder, "even", tp=2, leaves=8, disable_cuda_graph=True, disable_prefill_cuda_graph=True) == alone


@pytest.mark.parametrize(
    ("quantization", "leaves"), [("modelopt_fp4", 2), ("modelopt_fp4", 8), ("modelopt_fp8", 2), ("fp8", 2)]
)
def test_two_gpus_share_packed_weights(folder: Path, quantization: str, leaves: int) -> None:
    need(2)
    options = {"load_format": "dummy", "quantization": quantization}
    assert bits_of(folder, "even", tp=2, leaves=leaves, **options) == bits_of(
        folder, "even", tp=1, leaves=leaves, **options
    )


def test_two_gpus_share_the_leaves_of_experts(folder: Path) -> None:
    """Two ranks of one leaf, two of two, and one GPU with all of them."""
    need(2)
    path, found = servable_family(folder / "leaves", "inkling", head_dim=16), {}
    options = {"max_total_tokens": 16384, "chunked_prefill_size": 256, "max_running_requests": 16}
    for tp, leaves in ((1, 2), (2, 2), (1, 4), (2, 4)):
        with LLM(str(path), device="cuda", tp=tp, tp_leaves=leaves, **options) as llm:
            found[tp, leaves] = llm.fingerprint, told(llm)
    assert found[1, 2] == found[2, 2]
    assert found[1, 4] == found[2, 4]


def test_two_gpus_share_experts_windows_and_convolutions(folder: Path) -> None:
    """Cached or not, decoded or prefilled, in graphs or not: what two ranks say of a tiny Inkling stays the same."""
    need(2)
    path = servable_family(folder / "inkling", "inkling", head_dim=16)
    found = []
    for more in ({}, {"disable_cuda_graph": True, "disable_prefill_cuda_graph": True}):
        options = {"max_total_tokens": 16384, "chunked_prefill_size": 256, "max_running_requests": 16}
        with LLM(str(path), device="cuda", tp=2, **options, **more) as llm:
            found += [told(llm), told(llm)]
            [first] = llm.generate([PROMPTS[0]], max_new_tokens=40, logprobs=True, ignore_eos=True, temperature=1.0)
            [scored] = llm.generate([first.all_ids], max_new_tokens=0, logprob_start=len(PROMPTS[0]) - 1)
            assert [one for one in scored.prompt_logprobs or [] if one is not None] == first.logprobs
    assert all(one == found[0] for one in found)


def test_a_rank_that_is_killed_ends_the_group_with_one_error(folder: Path) -> None:
    need(2)
    with ranks_of(folder, "even", 2, 2) as llm:
        told(llm)
        [victim] = [one.pid for one in llm._parts.engine.runner.ranks.members]
        threading.Timer(0.3, os.kill, (victim, signal.SIGKILL)).start()
        began = time.monotonic()
        error: BaseException | None = None
        while error is None and time.monotonic() - began < 60:
            try:
                told(llm)
            except EngineError as found:
                error = found
        assert "rank 1 of 2 was ended by signal 9" in str(error)
        assert time.monotonic() - began < 20
        with pytest.raises(ProcessLookupError):
            os.kill(victim, 0)


def test_a_rank_that_is_killed_while_graphs_are_captured_is_one_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(2)
    capture, captured = Graphs.capture, []

    def killing(self, key, *arguments, **more):  # type: ignore[no-untyped-def]
        captured.append(key)
        if len(captured) == 3:
            [victim] = processes(os.getpid(), "zerokl.cli.rank")
            os.kill(victim, signal.SIGKILL)
        return capture(self, key, *arguments, **more)

    began = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(Graphs, "capture", killing)
        with pytest.raises(EngineError, match="rank 1 of 2 was ended by signal 9"):
            ranks_of(folder, "even", 2, 2)
    assert time.monotonic() - began < 60
    assert bits_of(folder, "even", tp=2, leaves=2) == bits_of(folder, "even", tp=1, leaves=2)


def test_a_start_that_fails_gives_back_what_ranks_shared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(2)
    made = []

    class Kept(peers.PeerMemory):
        def __init__(self, num_floats: int) -> None:
            super().__init__(num_floats)
            made.append(self)

    def failing(self, *arguments, **more):  # type: ignore[no-untyped-def]
        raise EngineError("no graphs today")

    with monkeypatch.context() as patch:
        patch.setattr(peers, "PeerMemory", Kept)
        patch.setattr(Graphs, "capture", failing)
        with pytest.raises(EngineError, match="no graphs today"):
            ranks_of(folder, "even", 2, 2)
    assert [one.address for one in made] == [0]
    assert bits_of(folder, "even", tp=2, leaves=2) == bits_of(folder, "even", tp=1, leaves=2)


def test_a_rank_whose_partial_sums_travel_in_bf16_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted defect: rank 0 rounds its part before the exchange."""
    need(2)
    expected = bits_of(folder, "even", tp=1, leaves=2)
    fold = peers.PeerGroup.fold

    def rounded(self, shape, *more):  # type: ignore[no-untyped-def]
        part = self.place(shape)
        part.copy_(part.bfloat16())
        return fold(self, shape, *more)

    monkeypatch.setattr(peers.PeerGroup, "fold", rounded)
    assert bits_of(folder, "even", tp=2, leaves=2) != expected
