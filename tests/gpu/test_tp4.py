"""Four GPUs: ranks give the bits of one. Skipped, and counted, where there are fewer, or no body for shared sums."""

from __future__ import annotations

import pytest

from tests.gpu.ranks import bits_of


@pytest.mark.device
def test_four_gpus_give_the_bits_of_one() -> None:
    assert bits_of(tp=4, leaves=4) == bits_of(tp=1, leaves=4)
