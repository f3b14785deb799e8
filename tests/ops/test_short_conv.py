"""Short convolutions: bits, and sequences cut anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.cpus import cpu, every_cpu
from tests.ops.numbers import same, wide
from zerokl import _native, ops
from zerokl.errors import EngineError, ShapeError
from zerokl.ops import reference_hybrid

OPTIONS = {
    "plain": {},
    "residual": {"residual": True},
    "silu": {"activation": "silu", "bias": True},
    "all": {"activation": "silu", "bias": True, "residual": True},
}


def options_of(name: str, channels: int) -> dict:
    options = dict(OPTIONS[name])
    return options | ({"bias": wide(9, channels)} if options.get("bias") else {})


def starts_of(*counts: int) -> np.ndarray:
    return np.cumsum([0, *counts]).astype(np.int32)


@pytest.mark.parametrize("name", OPTIONS)
# Widths 1 to 5; channels below, at and beyond 16; segments of one row, of fewer rows than taps, of more; none empty.
@pytest.mark.parametrize(
    ("width", "channels", "counts"), [(1, 3, (2,)), (4, 16, (1, 2, 9)), (3, 37, (5, 1)), (5, 16, (3,))]
)
def test_every_cpu_equals_the_reference(name, width, channels, counts):
    u, taps, starts = wide(1, sum(counts), channels), wide(2, width, channels), starts_of(*counts)
    previous, options = wide(3, len(counts), width - 1, channels), options_of(name, channels)
    expected = reference_hybrid.short_conv(u, taps, previous, starts, **options)
    for cpu_name in every_cpu():
        assert same(ops.short_conv(u, taps, previous, starts, **options), expected), cpu_name


@settings(max_examples=60)
@given(st.data())
def test_a_sequence_cut_anywhere_in_any_company_has_the_same_bits(data):
    width, channels, length = data.draw(st.integers(1, 5)), 20, 40
    u, taps = wide(1, length, channels), wide(2, width, channels)
    zeros = np.zeros((1, width - 1, channels), np.float32)
    whole = ops.short_conv(u, taps, zeros, starts_of(length), activation="silu")
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=5)))
    padded = np.concatenate([zeros[0], u])
    found = []
    for start, end in zip([0, *cuts], [*cuts, length], strict=True):
        before, after = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))  # rows of neighbours
        rows = np.concatenate([wide(5, before, channels), u[start:end], wide(6, after, channels)])
        counts = [count for count in (before, end - start, after) if count]
        previous = wide(7, len(counts), width - 1, channels)
        previous[1 if before else 0] = padded[start : start + width - 1]
        with cpu(data.draw(st.sampled_from(_native.isas())), data.draw(st.integers(1, 3))):
            y = ops.short_conv(rows, taps, previous, starts_of(*counts), activation="silu")
        found.append(y[before : before + end - start])
    assert same(np.concatenate(found), whole)


def test_wrong_arrays():
    u, taps, previous = wide(1, 4, 8), wide(2, 3, 8), wide(3, 1, 2, 8)
    with pytest.raises(ShapeError, match="previous"):
        ops.short_conv(u, taps, wide(3, 1, 3, 8), starts_of(4))
    with pytest.raises(EngineError, match="segments start at rows"):
        ops.short_conv(u, taps, previous, starts_of(3))
    assert ops.short_conv(u[:0], taps, previous[:0], starts_of()).shape == (0, 8)
