"""The search of `zerokl tune`, on a small layer."""

from __future__ import annotations

import pytest

from zerokl.bench import tune
from zerokl.ops import winners
from zerokl.ops.choices import Shape


@pytest.mark.device
def test_a_search_finds_the_fastest_that_keeps_the_bits():
    (found,) = tune.search({"out": Shape(0, 512, 1024, added=True)}, [8], 4)
    assert found.us <= found.before_us
    assert found.tried > found.rejected
    winners.check(found.entry)


def test_what_it_looks_at_exists():
    """Without a device too: the names that only a failing schedule would need."""
    assert issubclass(tune.triton.runtime.errors.OutOfResources, Exception)
    assert set(tune.measured_with.__annotations__) == {"return"}
