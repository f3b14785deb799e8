"""Bits, distances and number forms."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokl.check.bits import float32_bits, from_bits, is_float32, ulps

floats32 = st.floats(width=32, allow_nan=False)


@given(floats32)
def test_float32_survives_the_round_trip(value: float) -> None:
    assert is_float32(value)
    assert float32_bits(value) == struct.unpack("<I", struct.pack("<f", value))[0]
    assert from_bits(float32_bits(value)) == value


@given(floats32.filter(math.isfinite))
def test_the_next_float_is_one_ulp_away(value: float) -> None:
    bits = float32_bits(value)
    assert ulps(bits, bits + 1 if value >= 0 else bits - 1) == 1 or value == 0


@pytest.mark.parametrize(("left", "right", "distance"), [(0.0, -0.0, 0), (1.0, 1.0000001, 1), (-1e-45, 1e-45, 2)])
def test_distance_in_ulps(left: float, right: float, distance: int) -> None:
    assert ulps(float32_bits(left), float32_bits(right)) == distance


@pytest.mark.parametrize("value", [-0.1, -1.234567, 1e300])
def test_decimal_that_is_no_float32_is_seen(value: float) -> None:
    assert not is_float32(value)
