"""Rotary frequencies: correctly rounded, and the bands of Llama 3 where its paper's code puts them."""

from __future__ import annotations

import decimal
from decimal import Decimal

import numpy as np
import pytest

from tests.models.variants import LLAMA3
from zerokl.errors import CheckpointError, UnsupportedModel
from zerokl.models.rope import SERVED, context_length, rope_from


def inv_freq(head_size: int = 64, **config):
    return rope_from(config, head_size).inv_freq


@pytest.mark.parametrize("theta", [10000.0, 100000.0, 500000.0, 1e6, 8e9])
def test_plain_frequencies_are_the_float64_nearest_to_the_exact_power(theta):
    """Checked without a logarithm: f is nearest if theta**-i lies between the neighbours' midpoints, all exact."""
    for i, found in enumerate(inv_freq(64, rope_theta=theta)):
        low, high = (Decimal(float(found)) + Decimal(float(np.nextafter(found, to))) for to in (0.0, 10.0))
        with decimal.localcontext(prec=3000):
            exact = 1 / Decimal(theta) ** i  # (2 f) ** 32 against (2 theta ** (-2i/64)) ** 32
            assert low**32 <= exact * 2**32 <= high**32


def test_frequencies_do_not_depend_on_the_callers_decimal_context():
    expected = inv_freq(16, rope_theta=500000.0, rope_scaling=LLAMA3)
    with decimal.localcontext(prec=5, rounding=decimal.ROUND_UP):
        assert inv_freq(16, rope_theta=500000.0, rope_scaling=LLAMA3).tobytes() == expected.tobytes()


def test_linear_scaling_divides_every_frequency():
    scaled = inv_freq(rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 4.0})
    assert scaled.tobytes() == (inv_freq(rope_theta=10000.0) / 4).tobytes()


def test_llama3_keeps_fast_frequencies_divides_slow_ones_and_blends_between():
    plain = inv_freq(128, rope_theta=500000.0)
    scaled = inv_freq(128, rope_theta=500000.0, rope_scaling={**LLAMA3, "original_max_position_embeddings": 8192})
    turns = 8192 * plain / (2 * np.pi)
    kept, divided = turns > 4, turns < 1
    assert (scaled[kept] == plain[kept]).all()
    np.testing.assert_allclose(scaled[divided], plain[divided] / 8, rtol=1e-15)
    share = (turns - 1) / 3
    blend = ((1 - share) / 8 + share) * plain
    between = ~kept & ~divided
    assert 0 < between.sum() < kept.sum()
    np.testing.assert_allclose(scaled[between], blend[between], rtol=1e-14)


def test_the_new_form_of_the_config_means_the_same_as_the_old():
    new = inv_freq(rope_parameters={**LLAMA3, "rope_theta": 500000.0})
    old = inv_freq(rope_theta=500000.0, rope_scaling=LLAMA3)
    assert new.tobytes() == old.tobytes() != inv_freq(rope_theta=10000.0, rope_scaling=LLAMA3).tobytes()


def test_a_partial_rotary_factor_turns_part_of_each_head():
    assert inv_freq(64, partial_rotary_factor=0.5).tobytes() == inv_freq(32).tobytes()


@pytest.mark.parametrize("kind", ["dynamic", "ntk"])
def test_another_kind_of_scaling_is_refused_by_name(kind):
    with pytest.raises(UnsupportedModel, match=rf"'{kind}' .*supported are default, linear, llama3"):
        inv_freq(rope_scaling={"rope_type": kind, "factor": 2.0})


YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}


def test_yarn_keeps_fast_pairs_divides_slow_ones_and_has_a_ramp_between():
    plain, scaled = inv_freq(128), inv_freq(128, rope_scaling=YARN, max_position_embeddings=32768)
    share = (1 - scaled / plain) / (1 - 1 / 8)  # 0: kept, 1: divided
    low, high = (np.log(4096 / (turns * 2 * np.pi)) * 64 / np.log(10000.0) for turns in (32, 1))
    expected = np.clip((np.arange(64) - np.floor(low)) / (np.ceil(high) - np.floor(low)), 0, 1)
    np.testing.assert_allclose(share, expected, atol=1e-14)
    assert (share == 0).sum() > 0
    assert (scaled == plain / 8).sum() > 10


def test_yarn_scales_cosines_by_the_log_of_its_factor_unless_told_otherwise():
    def scale(**more):
        return rope_from({"max_position_embeddings": 32768, "rope_scaling": YARN | more}, 64).scale

    assert scale() == pytest.approx(1 + 0.1 * np.log(8), rel=1e-15)
    assert scale(attention_factor=0.75) == 0.75
    assert scale(mscale=1.0, mscale_all_dim=1.0) == 1.0
    assert scale(factor=0.5) == 1.0


def test_yarns_context_is_the_trained_one_times_the_factor():
    from_card = {"max_position_embeddings": 4096, "rope_scaling": YARN}
    assert context_length(from_card, 1) == 32768
    assert context_length({"max_position_embeddings": 65536, "rope_scaling": YARN}, 1) == 65536
    assert context_length({"max_position_embeddings": 4096}, 1) == 4096


LONG = {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
LENGTHS = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(("served", "name", "divisor"), [(None, "long", 2), (4097, "long", 2), (4096, "short", 1)])
def test_longrope_takes_the_long_list_if_the_server_may_go_past_the_trained_context(served, name, divisor):
    rope = rope_from(LENGTHS | {"rope_scaling": LONG, SERVED: served}, 64)
    assert rope.name == name
    assert rope.inv_freq.tobytes() == (inv_freq(64) / divisor).tobytes()
    assert rope.scale == pytest.approx(np.sqrt(1 + np.log(32) / np.log(4096)), rel=1e-15)


def test_longropes_lists_must_have_a_number_for_every_pair():
    with pytest.raises(CheckpointError, match="long_factor of 32 numbers"):
        inv_freq(64, **LENGTHS, rope_scaling=LONG | {"long_factor": [1.0] * 31})
    with pytest.raises(CheckpointError, match="positive"):
        inv_freq(64, **LENGTHS, rope_scaling=LONG | {"long_factor": [1.0] * 31 + [0]})


def test_a_stretched_context_without_its_lengths_is_refused():
    with pytest.raises(CheckpointError, match="original_max_position_embeddings"):
        inv_freq(64, rope_scaling={"type": "yarn", "factor": 4.0})


@pytest.mark.parametrize("value", [None, 0, -1, "8", True])
def test_a_scaling_without_its_numbers_is_refused(value):
    with pytest.raises(CheckpointError, match="low_freq_factor"):
        inv_freq(rope_scaling={**LLAMA3, "low_freq_factor": value})


def test_bands_that_have_no_width_are_refused():
    with pytest.raises(CheckpointError, match="low_freq_factor 4 below high_freq_factor 4"):
        inv_freq(rope_scaling={**LLAMA3, "low_freq_factor": 4.0})
