"""Four GPUs: ranks give the bits of one. Skipped, and counted, where there are fewer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.ranks import HEADS, SHARED_GPUS, bits_of, need
from zerokl.suites import register_cuda_ci

register_cuda_ci(est_time=60, stage="extra-b", runner_config="1-gpu-small")

pytestmark = [pytest.mark.device, pytest.mark.timeout(300), SHARED_GPUS]


@pytest.mark.parametrize("name", HEADS)
def test_four_gpus_give_the_bits_of_one(tmp_path: Path, name: str) -> None:
    need(4)
    assert bits_of(tmp_path, name, tp=4, leaves=4) == bits_of(tmp_path, name, tp=1, leaves=4)
