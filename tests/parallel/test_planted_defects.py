"""What would break the promise, planted one by one: each is seen by the property that is there to see it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from msgspec.structs import replace

from tests.ops.numbers import wide
from tests.parallel import test_invariance as invariance
from tests.parallel.teams import Threads, groups, told
from zerokl.errors import EngineError
from zerokl.ops import reference
from zerokl.parallel.shared import SharedGroup

NAME = "qwen3-moe"


def differs() -> bool:
    return invariance.answers(NAME, 4, 4) != invariance.alone(NAME, 4)


def test_without_a_defect_nothing_differs():
    assert not differs()


def test_a_sum_in_the_order_of_arrival_is_seen(monkeypatch):
    """As an all-reduce that adds what comes first: here rank 2 is late at every third sum."""
    fold, calls = SharedGroup.fold, iter(range(10**9))
    lock = threading.Lock()

    def by_arrival(self, part, shape, count, bias, residual):
        with lock:
            late = next(calls) // self.size % 3 == 0
        parts = self.gather(np.zeros(shape, np.float32) if part is None else part, [shape] * self.size)
        order = [0, 1, 3, 2] if late else [0, 1, 2, 3]
        total = np.zeros(shape, np.float32)
        for rank in order:
            total = total + parts[rank]
        total = total if bias is None else total + bias
        return total if residual is None else total + residual

    assert fold is not by_arrival
    monkeypatch.setattr(SharedGroup, "fold", by_arrival)
    assert differs()


def test_partial_sums_that_travel_in_bf16_are_seen(monkeypatch):
    fold = SharedGroup.fold

    def rounded(self, part, *more):
        return fold(self, None if part is None else reference.pack(part, "bfloat16"), *more)

    monkeypatch.setattr(SharedGroup, "fold", rounded)
    assert differs()


def test_leaves_that_depend_on_the_number_of_ranks_are_seen():
    """What every other engine does: as many parts as ranks, whatever the number."""
    assert invariance.answers(NAME, 4, 4) != invariance.answers(NAME, 2, 2)


def short_plan(checkpoint_name: str = "even") -> tuple[Threads, list[list[int]]]:
    checkpoint = invariance.checkpoint_of(checkpoint_name)
    return Threads(checkpoint, 2, 2), [[5, 6, 7, 8] * 4, [9, 10, 11]]


def test_a_rank_with_another_plan_is_an_error_that_names_the_step():
    runner, prompts = short_plan()
    runner.compares = True
    told(runner, prompts, 2)

    def other_page(rank, plan):
        pages = [plan.segments[0].pages[0] + 3, *plan.segments[0].pages[1:]]
        return replace(plan, segments=(replace(plan.segments[0], pages=pages), *plan.segments[1:]))

    runner.change_plan = other_page
    with pytest.raises(EngineError, match="ranks have different plans for step 0"):
        told(runner, prompts, 2)
    runner.close()


def test_without_the_comparison_another_plan_gives_other_answers():
    """Why it is compared: nothing else would say so."""
    runner, prompts = short_plan()
    expected = told(runner, prompts, 3)

    def other_order(rank, plan):
        return replace(plan, segments=plan.segments[::-1])

    runner.change_plan = other_order
    assert told(runner, prompts, 3) != expected
    runner.close()


def test_groups_fold_as_one_rank_does_whatever_the_size_of_a_slot():
    """Rows that need several rounds; parts of some ranks only; bias and residual after the tree."""
    rng = np.random.default_rng(0)
    for ranks, count, rows in ((2, 2, 1), (4, 4, 9), (4, 3, 5), (4, 1, 3), (8, 6, 2)):
        parts = [rng.standard_normal((rows, 40)).astype(np.float32) for _ in range(count)]
        bias, residual = wide(1, 40), wide(2, rows, 40)
        expected = reference.tree(parts) + bias + residual
        together = groups(ranks, slot_floats=128)
        found: list[np.ndarray | None] = [None] * ranks

        def run(rank: int, together=together, parts=parts, found=found, bias=bias, residual=residual) -> None:
            part = parts[rank] if rank < len(parts) else None
            found[rank] = together[rank].fold(part, residual.shape, len(parts), bias, residual)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert all(one is not None and one.tobytes() == expected.tobytes() for one in found)
