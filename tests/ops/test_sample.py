"""Sampling: equal to its oracle, a function of the row alone, and of the right distribution."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.cpus import every_cpu
from zerokl.errors import EngineError, ShapeError, UnsupportedDtype
from zerokl.ops import reference
from zerokl.ops.kv import F32
from zerokl.ops.sample import Draw, process, sample
from zerokl.ops.score import score
from zerokl.types import LogprobSpec, SamplingParams

PLAIN = SamplingParams()


def logits_of(rows: int, vocabulary: int, seed: int, *, ties: bool = False) -> F32:
    x = np.random.default_rng(seed).standard_normal((rows, vocabulary)) * 3
    return np.float32(np.round(x) if ties else x)


def draws_of(vocabulary: int) -> st.SearchStrategy[Draw]:
    ids = st.integers(0, vocabulary - 1)
    masks = st.integers(0, 2**32).map(lambda seed: mask_of(np.random.default_rng(seed).random(vocabulary) < 0.6))
    params = st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 1e-7, 0.3, 1.0, 2.5]),
        top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 1e-9]),
        top_k=st.sampled_from([-1, 1, 3, 40, vocabulary, vocabulary + 5]),
        min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
        frequency_penalty=st.sampled_from([0.0, 0.7, -1.1]),
        presence_penalty=st.sampled_from([0.0, 0.4]),
        repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
        logit_bias=st.lists(st.tuples(ids, st.floats(-5, 5)), max_size=3).map(tuple),
        seed=st.integers(-(2**63), 2**64 - 1),
        stream=st.integers(0, 2**32 - 1),
    )
    history = st.tuples(st.lists(ids, max_size=9), st.lists(ids, max_size=9))
    return st.builds(Draw, params, st.integers(0, 2**31 - 1), history, st.none() | masks)


def mask_of(allowed: np.ndarray) -> bytes:
    allowed[-1] = True
    return np.packbits(allowed, bitorder="little").tobytes()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_equals_the_reference_on_every_cpu(data):
    vocabulary = data.draw(st.sampled_from([1, 7, 64, 130, 1100]))
    draws = data.draw(st.lists(draws_of(vocabulary), min_size=1, max_size=4))
    x = logits_of(len(draws), vocabulary, data.draw(st.integers(0, 99)), ties=data.draw(st.booleans()))
    x[:, ::3] = data.draw(st.sampled_from([-np.inf, -0.0, 2.0]))
    x[:, -1] = 1
    ids, processed = reference.sample(x, draws), reference.process(x, draws)
    for name in every_cpu():
        assert process(x, draws).tobytes() == processed.tobytes(), name
        assert sample(x, draws).tolist() == ids.tolist(), name


def test_a_row_does_not_depend_on_other_rows():
    x = logits_of(33, 500, 1)
    draws = [Draw(msgspec.structs.replace(PLAIN, seed=row % 5, top_k=(row % 3) * 20 - 20), 7) for row in range(33)]
    together = sample(x, draws)
    assert [sample(x[row : row + 1], [draws[row]])[0] for row in range(33)] == together.tolist()
    order = np.random.default_rng(2).permutation(33)
    assert (sample(np.ascontiguousarray(x[order]), [draws[i] for i in order]) == together[order]).all()


# --- each step -----------------------------------------------------------------------------------------------------


def processed(x: list[float], draw: Draw) -> list[float]:
    return process(np.float32([x]), [draw])[0].tolist()


def test_penalties_count_prompt_and_output_as_they_should():
    params = SamplingParams(frequency_penalty=0.5, presence_penalty=0.25, repetition_penalty=2.0)
    draw = Draw(params, 0, ([0, 1, 1], [2, 3, 3, 3]))
    assert processed([4, -4, 4, -4, 4], draw) == [2, -8, 2 - 0.5 - 0.25, -8 - 1.5 - 0.25, 4]


def test_bias_mask_and_temperature_come_in_this_order():
    params = SamplingParams(temperature=2.0, logit_bias=((0, 3.0), (2, 100.0), (0, 1.0)))
    assert processed([2, 6, 0], Draw(params, 0, mask=b"\x03")) == [3, 3, -np.inf]


def test_greedy_is_argmax_with_ties_to_the_lower_id_whatever_the_filters_and_the_seed():
    x = np.float32([[1, 5, 5, -0.0, 0]])
    for seed in range(20):
        params = SamplingParams(temperature=0, top_k=1, top_p=0.1, min_p=1, seed=seed)
        assert sample(x, [Draw(params, seed)]).tolist() == [1]
    assert sample(np.float32([[-0.0, 0, -1]]), [Draw(SamplingParams(temperature=0), 0)]).tolist() == [0]
    assert processed([1, 5, 5], Draw(SamplingParams(temperature=0), 0)) == [-np.inf, 0, -np.inf]


def test_equal_logits_at_a_boundary_stay_by_lower_id():
    x = [1.0, 2, 2, 0, 2, 2]
    assert kept(x, SamplingParams(top_k=2)) == [1, 2]
    # Each 2 has weight 2^40 of 4.50 * 2^40, so 0.4 of all is crossed by the second of them.
    assert kept(x, SamplingParams(top_p=0.4)) == [1, 2]
    assert kept(x, SamplingParams(top_p=1e-9)) == [1]
    third = 1 / 3  # the second of three equals has exactly a third before it: it stays if that is less than top_p
    assert kept([0.0, 0, 0], SamplingParams(top_p=third)) == [0]
    assert kept([0.0, 0, 0], SamplingParams(top_p=third + 1e-15)) == [0, 1]
    assert kept(x, SamplingParams(top_k=3, top_p=0.5)) == [1, 2]  # of what top-k left, not of all
    assert kept(x, SamplingParams(min_p=0.36)) == [0, 1, 2, 4, 5]
    assert kept(x, SamplingParams(min_p=1.0)) == [1, 2, 4, 5]


def kept(x: list[float], params: SamplingParams) -> list[int]:
    return np.flatnonzero(np.isfinite(processed(x, Draw(params, 0)))).tolist()


@pytest.mark.parametrize("seed", range(40))
def test_filters_are_the_plain_float64_definitions_away_from_ties(seed):
    rng = np.random.default_rng(seed)
    x = logits_of(1, 1000, seed)[0]
    params = SamplingParams(
        temperature=float(rng.choice([0.5, 1.0, 1.7])),
        top_k=int(rng.choice([-1, 5, 100])),
        top_p=float(rng.uniform(0.05, 0.99)),
        min_p=float(rng.choice([0, rng.uniform(0, 0.3)])),
    )
    scaled = x.astype(np.float64) / params.temperature
    order = np.argsort(-scaled)
    ranked = np.exp(scaled[order] - scaled.max())
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    before = (np.cumsum(ranked) - ranked) / ranked.sum()
    assert np.abs(before - params.top_p).min() > 1e-6  # not a tie
    expected = order[: len(ranked)][(before < params.top_p) & (ranked >= params.min_p)]
    assert kept(x.tolist(), params) == sorted(expected.tolist())


def test_processed_logprobs_are_those_of_what_is_drawn_from():
    x = logits_of(1, 50, 3)
    draw = Draw(SamplingParams(temperature=0.7, top_k=4), 0)
    found = np.frombuffer(score(process(x, [draw]), np.zeros(1, np.int32), LogprobSpec(5)).top, "<f4")
    best = np.sort(x[0].astype(np.float64))[::-1][:4] / 0.7
    assert np.allclose(found[:4], best - np.log(np.exp(best).sum()), atol=1e-5)
    assert found[4] == -np.inf


# --- noise ---------------------------------------------------------------------------------------------------------


def test_noise_depends_on_seed_stream_and_position_and_on_nothing_else():
    x = np.zeros((1, 3000), np.float32)

    def draw(position: int = 5, **params: object) -> int:
        return int(sample(x, [Draw(SamplingParams(**params), position)])[0])  # type: ignore[arg-type]

    assert draw() == draw()
    others = [draw(6), draw(seed=1), draw(seed=2**32), draw(seed=-1), draw(stream=1), draw(seed=5), draw(0, stream=5)]
    assert len({draw(), *others}) == 8
    assert draw(seed=-1) == draw(seed=2**64 - 1)
    # A filter takes candidates away; the noise of the others stays, so a winner that survives still wins.
    winner = draw()
    mask = np.ones(3000, np.bool_)
    mask[:winner] = False
    assert sample(x, [Draw(PLAIN, 5, mask=mask_of(mask))]).tolist() == [winner]


def frequencies(x: F32, params: SamplingParams, count: int, seed: int) -> np.ndarray:
    """How often each id is drawn at `count` positions of one seed."""
    draws = [Draw(msgspec.structs.replace(params, seed=seed), position) for position in range(count)]
    ids = sample(np.repeat(x[None], count, axis=0), draws)
    return np.bincount(ids, minlength=len(x))


def chi_square(observed: np.ndarray, p: np.ndarray) -> float:
    """In standard deviations above its mean."""
    expected = p * observed.sum()
    freedom = len(p) - 1
    return float((((observed - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max())
    return e / e.sum()


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.8])
def test_draws_have_the_distribution_of_the_softmax(temperature):
    x = np.float32(np.linspace(-3, 2, 40))[np.random.default_rng(1).permutation(40)]
    observed = frequencies(x, SamplingParams(temperature=temperature), 40_000, seed=11)
    assert abs(chi_square(observed, softmax(x / temperature))) < 3.5


def test_equal_logits_are_drawn_equally_often_across_blocks_of_noise():
    observed = frequencies(np.zeros(200, np.float32), PLAIN, 40_000, seed=12)
    assert abs(chi_square(observed, np.full(200, 1 / 200))) < 3.5


def test_positions_streams_and_seeds_are_independent():
    """Pairs of neighbouring draws fill their square evenly."""
    x = np.zeros((20_000, 8), np.float32)
    p = np.full(64, 1 / 64)
    first = sample(x, [Draw(SamplingParams(seed=3), t) for t in range(20_000)])
    for second in (
        np.roll(first, 1),
        sample(x, [Draw(SamplingParams(seed=4), t) for t in range(20_000)]),
        sample(x, [Draw(SamplingParams(seed=3, stream=1), t) for t in range(20_000)]),
    ):
        assert abs(chi_square(np.bincount(first * 8 + second, minlength=64), p)) < 3.5


def test_a_planted_bias_is_seen():
    """An eighth more of the likeliest id, or noise shared by neighbouring ids, turns the distribution's test red."""
    x = np.float32(np.linspace(-3, 2, 40))
    biased = x + np.float32([0] * 39 + [0.12])
    observed = frequencies(biased, PLAIN, 40_000, seed=11)
    assert chi_square(observed, softmax(x)) > 3.5

    words = np.stack([reference.random_words(11, 0, t, 40) for t in range(4000)])
    shared = words.repeat(2, axis=1)[:, :40]
    observed = np.bincount((x + reference.gumbel(shared)).argmax(axis=1), minlength=40)
    assert chi_square(observed, softmax(x)) > 3.5


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (Draw(SamplingParams(frequency_penalty=1), 0), "penalties need the history"),
        (Draw(SamplingParams(presence_penalty=1), 0, ([], [9])), "id 9 in the history"),
        (Draw(SamplingParams(logit_bias=((9, 1.0),)), 0), "logit bias of id 9"),
        (Draw(PLAIN, 0, mask=b""), "a mask of 0 bytes for 9 ids"),
        (Draw(PLAIN, 0, mask=b"\0\0"), "no id may be drawn"),
        (Draw(SamplingParams(temperature=0), 0, mask=b"\0\0"), "no id may be drawn"),
    ],
)
def test_a_broken_draw_is_an_engine_error_that_names_its_row(draw, message):
    with pytest.raises(EngineError, match=f"row 1: {message}"):
        sample(np.zeros((2, 9), np.float32), [Draw(PLAIN, 0), draw])


@pytest.mark.parametrize("place", [0, 15, 16, 20])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_nan_or_an_infinity_is_an_engine_error(place, value):
    x = np.zeros((1, 21), np.float32)
    x[0, place] = value
    for name in every_cpu():
        with pytest.raises(EngineError, match="a logit is a NaN"):
            sample(x, [Draw(PLAIN, 0)])
        assert name


def test_wrong_shapes_and_types_are_named():
    with pytest.raises(ShapeError, match=r"logits must be \[1, 5\]"):
        sample(np.zeros((2, 5), np.float32), [Draw(PLAIN, 0)])
    with pytest.raises(UnsupportedDtype, match="logits must be float32"):
        sample(np.zeros((1, 5)), [Draw(PLAIN, 0)])
    with pytest.raises(ShapeError, match="V > 0"):
        process(np.zeros((1, 0), np.float32), [Draw(PLAIN, 0)])


def test_no_rows_draw_nothing():
    assert sample(np.empty((0, 9), np.float32), []).shape == (0,)
    assert process(np.empty((0, 9), np.float32), []).shape == (0, 9)
