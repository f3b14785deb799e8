"""The runner alone: however a sequence is cut, placed and accompanied, its logprobs and its draw keep their bits.

`tests/bits/test_plans_*.py` ask the same of the whole engine; here plans are drawn freely, also such as no scheduler
makes, and run by the real kernels on a tiny random model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.models.memory import VOCABULARY, tiny_model
from tests.models.variants import tokens
from zerokl import _native, ops
from zerokl.runner import CpuRunner, wanted
from zerokl.types import Logprobs, LogprobSpec, PageId, RequestId, SamplingParams, Segment, StepPlan

SAMPLING = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, seed=3)
SPEC = LogprobSpec(2, (0, 283))
LONGEST = 530


@cache
def model():
    return tiny_model(5, dtype="bfloat16", num_key_value_heads=2, tie_word_embeddings=False)


@dataclass(frozen=True)
class Answer:
    scores: Logprobs
    token: int
    logprobs: Logprobs


@cache
def alone(length: int, spec: LogprobSpec = SPEC) -> Answer:
    """A sequence by itself, in one step, in pages in order: what every other way must equal."""
    story = tokens(length, VOCABULARY)
    pages = [PageId(page) for page in range(-(-length // 64))]
    segment = Segment(RequestId(0), 0, story, pages, targets=story[1:], sample=SAMPLING, logprobs=spec)
    result = CpuRunner(model(), len(pages), 64).submit(StepPlan(0, (segment,))).result().segments[0]
    return Answer(result.scores or Logprobs(), result.token, result.logprobs)


@dataclass
class Journey:
    """A sequence on its way through the runner."""

    number: int
    length: int
    pages: list[PageId]
    done: int = 0
    scores: Logprobs = field(default_factory=Logprobs)

    def segment(self, count: int) -> Segment:
        """The next `count` tokens; the one that ends the sequence draws."""
        story, stop = tokens(self.length, VOCABULARY), min(self.done + count, self.length)
        return Segment(
            RequestId(self.number),
            self.done,
            story[self.done : stop],
            self.pages,
            targets=story[self.done + 1 : stop + 1],
            sample=SAMPLING if stop == self.length else None,
            logprobs=SPEC,
        )

    def restart(self) -> None:
        self.done, self.scores = 0, Logprobs()


@dataclass(frozen=True)
class Way:
    """How some sequences are run: which take how many tokens in each step, and where their pages lie."""

    lengths: list[int]
    steps: list[list[tuple[int, int]]]
    """Per step: (sequence modulo their number, tokens)."""
    page_size: int
    page_order: int
    """Seed of the permutation of pages."""
    slice_rows: int | None
    restarts: list[int]
    """Steps after which the first sequence begins again in the same pages, as after a preemption."""


lengths = st.one_of(st.integers(1, 24), st.integers(1, 24), st.sampled_from([64, 65, 511, 512, 513, LONGEST]))
counts = st.one_of(st.integers(1, 3), st.integers(1, LONGEST))
ways = st.builds(
    Way,
    lengths=st.lists(lengths, min_size=1, max_size=5),
    steps=st.lists(st.lists(st.tuples(st.integers(0, 4), counts), min_size=1, max_size=5), max_size=8),
    page_size=st.sampled_from([1, 5, 16, 64]),
    page_order=st.integers(0, 9),
    slice_rows=st.sampled_from([None, 1, 3]),
    restarts=st.lists(st.integers(0, 8), max_size=2),
)


def run(way: Way) -> Iterator[tuple[int, Answer]]:
    """Run the way's steps, then whatever is left in large chunks; yields each sequence's length and answer."""
    sequences, num_pages = placed(way)
    runner = CpuRunner(model(), num_pages, way.page_size, fill=np.nan, slice_rows=way.slice_rows)
    rest = [[(i, LONGEST) for i in range(len(sequences))]] * 2
    for number, step in enumerate([*way.steps, *rest]):
        chosen = {i % len(sequences): count for i, count in step}
        moving = [(sequences[i], count) for i, count in chosen.items() if sequences[i].done < sequences[i].length]
        if not moving:
            continue
        plan = StepPlan(number, tuple(one.segment(count) for one, count in moving))
        results = runner.submit(plan).result().segments
        for (one, _), segment, result in zip(moving, plan.segments, results, strict=True):
            one.done += len(segment.tokens)
            one.scores = one.scores.joined(result.scores or Logprobs())
            if one.done == one.length:
                yield one.length, Answer(one.scores, result.token, result.logprobs)
        if number in way.restarts:
            sequences[0].restart()


def placed(way: Way) -> tuple[list[Journey], int]:
    """The sequences with pages from all over a pool that has some to spare."""
    needed = [-(-length // way.page_size) for length in way.lengths]
    free = np.random.default_rng(way.page_order).permutation(sum(needed) + 3).tolist()
    return [
        Journey(i, length, [PageId(free.pop()) for _ in range(count)])
        for i, (length, count) in enumerate(zip(way.lengths, needed, strict=True))
    ], sum(needed) + 3


def check(max_examples: int, **options) -> None:
    @settings(max_examples=max_examples, deadline=None, database=None, **options)
    @given(ways)
    def property_of_bits(way: Way) -> None:
        answers = list(run(way))
        assert len(answers) >= len(way.lengths)
        for length, answer in answers:
            assert answer == alone(length), f"a sequence of {length} differs"

    property_of_bits()


def test_any_cut_placement_and_company_gives_the_same_bits():
    check(60, derandomize=True)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_any_cut_placement_and_company_gives_the_same_bits_at_length():
    check(5000)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 511, 512, 513])
def test_chunks_of_one_size_give_the_same_bits(count):
    steps = [[(0, count)]] * -(-LONGEST // count)
    ((_, answer),) = run(Way([LONGEST], steps, 64, 0, None, []))
    assert answer == alone(LONGEST)


def test_a_crowd_of_decodes_gives_the_same_bits():
    way = Way([7] * 40, [[(i, 3) for i in range(40)], *[[(i, 1) for i in range(40)]] * 4], 16, 1, 7, [])
    answers = list(run(way))
    assert len(answers) == 40
    assert {answer for _, answer in answers} == {alone(7)}


def test_what_logprobs_are_asked_for_moves_no_token_and_no_other_logprob():
    plain, rich = alone(24, LogprobSpec()), alone(24, LogprobSpec(9, (5, 6, 7)))
    assert (plain.token, plain.scores.chosen) == (rich.token, rich.scores.chosen)
    assert plain.logprobs.chosen == rich.logprobs.chosen


# Planted defects: each turns the property red


def split_k_for_few_rows(patch: pytest.MonkeyPatch) -> None:
    linear = ops.linear

    def split(x, weight, *, bias=None, residual=None, wide=False, norm=None):
        x = x if norm is None else ops.rms_norm(x, *norm)
        if len(x) > 2:
            return linear(x, weight, bias=bias, residual=residual)
        low, high = x.copy(), x.copy()
        low[:, x.shape[1] // 2 :], high[:, : x.shape[1] // 2] = 0, 0
        y = linear(low, weight) + linear(high, weight)
        return y if residual is None else y + residual

    patch.setattr(ops, "linear", split)


def log_of_softmax_in_decode(patch: pytest.MonkeyPatch) -> None:
    score = ops.score

    def naive(logits, targets, spec):
        found = score(logits, targets, spec)
        if len(logits) > 1:
            return found
        x = logits - logits.max()
        share = np.exp(x)[[0], targets] / np.exp(x).sum()
        return replace(found, chosen=np.log(share).astype(np.float32).tobytes())

    patch.setattr(ops, "score", naive)


def seed_by_batch_slot(patch: pytest.MonkeyPatch) -> None:
    sample = ops.sample

    def by_slot(logits, draws):
        moved = [
            replace(draw, params=replace(draw.params, seed=draw.params.seed + slot)) for slot, draw in enumerate(draws)
        ]
        return sample(logits, moved)

    patch.setattr(ops, "sample", by_slot)


def read_one_key_too_far(patch: pytest.MonkeyPatch) -> None:
    attention = ops.attention

    def further(q, kv, scale):
        room = kv.ragged.page_table.shape[1] * kv.ragged.page_size
        positions = np.minimum(kv.ragged.positions + 1, room - 1).astype(np.int32)
        return attention(q, replace(kv, ragged=replace(kv.ragged, positions=positions)), scale)

    patch.setattr(ops, "attention", further)


def positions_from_the_chunks_start(patch: pytest.MonkeyPatch) -> None:
    table = ops.rope_table

    def restarted(positions, inv_freq, scale):
        return table(positions - positions.min(), inv_freq, scale)

    patch.setattr(ops, "rope_table", restarted)


def pages_of_the_first_segment_for_all(patch: pytest.MonkeyPatch) -> None:
    ragged = _native.ragged

    def of_the_first(segments, page_size):
        first = list(segments[0].pages)
        return ragged([replace(one, pages=first + list(one.pages)[len(first) :]) for one in segments], page_size)

    patch.setattr(_native, "ragged", of_the_first)


def rows_of_a_slice_counted_from_the_first(patch: pytest.MonkeyPatch) -> None:
    rows_of = wanted.rows_of
    patch.setattr(wanted, "rows_of", lambda columns, start, stop: rows_of(columns, 0, stop - start))


def draw_keyed_by_tokens_in_the_step(patch: pytest.MonkeyPatch) -> None:
    draw_of = wanted.draw_of
    patch.setattr(wanted, "draw_of", lambda segment: replace(draw_of(segment), position=len(segment.tokens)))


DEFECTS: Sequence[Callable[[pytest.MonkeyPatch], None]] = [
    split_k_for_few_rows,
    log_of_softmax_in_decode,
    seed_by_batch_slot,
    read_one_key_too_far,
    positions_from_the_chunks_start,
    pages_of_the_first_segment_for_all,
    rows_of_a_slice_counted_from_the_first,
    draw_keyed_by_tokens_in_the_step,
]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_the_property_turns_red_on(defect, monkeypatch):
    for length in (*range(1, 25), 64, 65, 511, 512, 513, LONGEST):
        alone(length)
    defect(monkeypatch)
    with pytest.raises(Exception, match=r"differs|not a number|nan|NaN|finite"):
        check(300, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False)
