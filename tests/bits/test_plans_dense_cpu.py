"""Plan-independence of the dense architectures: `test_plans_hybrid_cpu.py`'s plans, fewer for each."""

from __future__ import annotations

import pytest

from tests.bits import test_plans_hybrid_cpu as hybrid
from zerokl.suites import register_cpu_ci

register_cpu_ci(est_time=25, stage="base-a", runner_config="cpu-small")
register_cpu_ci(est_time=60, stage="nightly", runner_config="cpu-small", nightly=True)

FAMILIES: dict[str, dict[str, int]] = {
    "gemma2": {"sliding_window": 6},
    "gpt2": {},
    "granite": {},
    "llama-yarn": {},
    "olmo2": {},
    "phi3": {"sliding_window": 6},
    "phi3-long": {},
    "qwen2": {},
    "qwen2-window-yarn": {"sliding_window": 6},
    "stablelm": {},
    "starcoder2": {"sliding_window": 5},
}
hybrid.OVERRIDES.update(FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_any_plan_sequence_gives_the_same_bits(family):
    seen = hybrid.run_any_plans(family, 12, derandomize=True)
    assert all(seen[event] for event in ("chunked_prefills", "hits")), f"an event never happened: {seen}"


@pytest.mark.parametrize("family", FAMILIES)
def test_second_turns_and_branches_hit_exactly_and_keep_their_bits(family):
    hybrid.test_second_turns_and_branches_hit_exactly_and_keep_their_bits(family)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", FAMILIES)
def test_any_plan_sequence_gives_the_same_bits_at_length(family):
    hybrid.run_any_plans(family, 1000)
