"""A model on several ranks, each a thread of the test's process: everything is real but the processes.

A plan goes to the other ranks as it would over their channel: encoded, without what only rank 0 needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np

from tests.models.memory import MemoryCheckpoint
from tests.models.run import pages_of, segment_of
from zerokl import models
from zerokl.config import Config
from zerokl.models import Model, Team
from zerokl.models.memory import windows_of
from zerokl.parallel.channel import Message, encode_plan
from zerokl.parallel.host_group import PeerGone
from zerokl.parallel.shared import SharedGroup, all_pairs, shared_file
from zerokl.runner import CpuRunner
from zerokl.runner.rank import compare
from zerokl.types import (
    Logprobs,
    LogprobSpec,
    PageId,
    SamplingParams,
    StatePool,
    StepPlan,
    StepResult,
    WindowPool,
)

PAGE_SIZE = 64
SPEC = LogprobSpec(3, (0, 5))


def groups(ranks: int, slot_floats: int = 1 << 14) -> list[SharedGroup]:
    """A slot small enough that larger parts take several rounds."""
    memory = shared_file(ranks, slot_floats)
    return [SharedGroup(rank, memory, ends, slot_floats) for rank, ends in enumerate(all_pairs(ranks))]


class Threads:
    """A runner over ranks on threads."""

    def __init__(
        self,
        checkpoint: MemoryCheckpoint,
        ranks: int,
        leaves: int,
        sequences: int = 2,
        num_pages: int = 12,
        make_group: Callable[[int], list[SharedGroup]] = groups,
        **config: Any,
    ) -> None:
        self.pool = ThreadPoolExecutor(ranks)
        self.groups = make_group(ranks) if ranks > 1 else []

        def runner_of(rank: int) -> CpuRunner:
            team = Team(leaves, self.groups[rank] if self.groups else None)
            model = models.load(checkpoint, Config(**config), team)
            windows = [WindowPool(window, num_pages) for window in windows_of(model.memory)]
            states = StatePool(PAGE_SIZE, sequences, 0) if any(layer.states for layer in model.memory) else None
            return CpuRunner(model, num_pages, PAGE_SIZE, windows=windows, states=states, fill=np.nan)

        self.runners = list(self.pool.map(runner_of, range(ranks)))
        self.change_plan: Callable[[int, StepPlan], StepPlan] = lambda rank, plan: plan
        self.compares = False

    @property
    def model(self) -> Model:
        return self.runners[0].model

    def submit(self, plan: StepPlan) -> StepResult:
        """Raises what rank 0 raises."""
        body = encode_plan(plan)

        def run(rank: int) -> StepResult | None:
            own = plan
            if rank:
                own = msgspec.msgpack.decode(body, type=Message).plan
                assert own is not None
                own = self.change_plan(rank, own)
            if self.compares:
                compare(self.groups[rank], own)
            if rank == 0:
                return self.runners[0].submit(own).result()
            self.runners[rank].follow(own)
            return None

        def run_or_end(rank: int) -> StepResult | None:
            try:
                return run(rank)
            except BaseException:
                if self.groups:
                    self.groups[rank].close()  # as the end of its process would
                raise

        futures = [self.pool.submit(run_or_end, rank) for rank in range(len(self.runners))]
        errors = [error for future in futures if (error := future.exception())]
        for error in sorted(errors, key=lambda error: isinstance(error, PeerGone)):
            raise error
        result = futures[0].result()
        assert result is not None
        return result

    def close(self) -> None:
        for group in self.groups:
            group.close()
        self.pool.shutdown()


def told(runner: Threads, prompts: Sequence[Sequence[int]], new_tokens: int, cut: int = 70) -> list[Any]:
    """Everything that each sequence is told: its prompt's scores, prefilled in two chunks, then drawn tokens."""
    model, found = runner.model, [[] for _ in prompts]
    scores, logprobs = [Logprobs() for _ in prompts], [Logprobs() for _ in prompts]
    pages, first = [], 0
    for prompt in prompts:
        count = pages_of(len(prompt) + new_tokens)
        pages.append([PageId(page) for page in range(first, first + count)])
        first += count
    texts, done = [list(prompt) for prompt in prompts], [0] * len(prompts)
    sampling = [SamplingParams(temperature=0.9 * (i % 2), seed=i) for i in range(len(prompts))]
    step = 0
    while any(len(tokens) < new_tokens for tokens in found):
        segments, moving = [], []
        for i, text in enumerate(texts):
            if len(found[i]) == new_tokens:
                continue
            stop = min(done[i] + cut, len(text))
            targets = text[done[i] + 1 : stop + 1]
            draws = sampling[i] if stop == len(text) else None
            wishes = {"targets": targets, "logprobs": SPEC, "sample": draws}
            segments.append(segment_of(model, i, done[i], text[done[i] : stop], pages[i], **wishes))
            moving.append((i, stop))
        for (i, stop), answer in zip(moving, runner.submit(StepPlan(step, tuple(segments))).segments, strict=True):
            done[i] = stop
            scores[i] = scores[i].joined(answer.scores or Logprobs())
            if answer.token is not None:
                texts[i].append(answer.token)
                found[i].append(answer.token)
                logprobs[i] = logprobs[i].joined(answer.logprobs or Logprobs())
        step += 1
    return list(zip(found, scores, logprobs, strict=True))
