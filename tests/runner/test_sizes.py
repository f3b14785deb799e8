"""From bytes to pools: which kind gets how much."""

from __future__ import annotations

import pytest

from zerokl.models.memory import Conv, Keys, LayerMemory, Recurrent
from zerokl.runner.sizes import (
    bytes_per_checkpoint,
    bytes_per_sequence,
    checkpoint_interval,
    key_bytes,
    largest_pools,
    pool_bytes,
    pools_of,
)
from zerokl.types import Pools, StatePool, WindowPool

KIB = 2**10

LOCAL, GLOBAL = Keys(8, 128, window=512), Keys(8, 128)
STREAMS = (Conv(4, 1024), Conv(4, 1024), Conv(4, 4096), Conv(4, 4096))
INKLING_SMALL = tuple(LayerMemory(GLOBAL if (layer + 1) % 6 == 0 else LOCAL, STREAMS) for layer in range(42))
"""Its real shape: 35 local and 7 global layers, four short convolutions in each."""

RECURRENT = (LayerMemory(states=(Conv(4, 8192), Recurrent((32, 128, 128), 8256))),) * 3 + (LayerMemory(Keys(2, 256)),)
"""Three linear-attention layers to one of full attention, as Qwen3-Next has them."""


def test_the_figures_of_inkling_small_are_those_of_its_description():
    """In bf16, half of our f32: 28 and 140 KiB of keys per token, 2.46 MiB of states per sequence."""
    assert key_bytes(INKLING_SMALL, None) == 2 * 28 * KIB
    assert key_bytes(INKLING_SMALL, 512) == 2 * 140 * KIB
    assert bytes_per_checkpoint(INKLING_SMALL) / 2 / KIB**2 == pytest.approx(2.46, abs=0.005)
    assert bytes_per_sequence(INKLING_SMALL) == bytes_per_checkpoint(INKLING_SMALL)


def test_convolutions_are_kept_at_every_page():
    assert checkpoint_interval(INKLING_SMALL, 64) == 64
    assert checkpoint_interval(INKLING_SMALL, 128) == 128
    assert checkpoint_interval(INKLING_SMALL, 1) == 64


def test_a_large_recurrent_state_is_kept_less_often_and_on_the_grid_of_its_chunk():
    assert bytes_per_checkpoint(RECURRENT) == 3 * 4 * (3 * 8192 + 32 * 128 * 128)
    assert checkpoint_interval(RECURRENT, 64) == 512
    assert checkpoint_interval((LayerMemory(states=(Recurrent((64, 64), 1),)),), 64) == 1024, "no keys to compare with"
    assert checkpoint_interval((LayerMemory(Keys(8, 128), (Recurrent((4, 4), 1, chunk=48),)),), 64) == 192


def test_plain_attention_has_pages_only():
    assert pools_of((LayerMemory(GLOBAL),) * 2, 100, 64, 256) == Pools(100, 64)


def test_sliding_pages_are_half_but_hold_some_windows_and_are_all_without_full_layers():
    mixed = (LayerMemory(GLOBAL), LayerMemory(LOCAL))
    assert pools_of(mixed, 1000, 64, 256).windows == (WindowPool(512, 500),)
    assert pools_of(mixed, 50, 64, 256).windows == (WindowPool(512, 36),)
    assert pools_of(mixed, 5, 64, 256).windows == (WindowPool(512, 5),)
    assert pools_of((LayerMemory(LOCAL),), 1000, 64, 256).windows == (WindowPool(512, 1000),)


def test_checkpoints_run_out_no_sooner_than_pages():
    assert pools_of(INKLING_SMALL, 1000, 64, 256).states == StatePool(64, 256, 1000)
    assert pools_of(RECURRENT, 1000, 64, 256).states == StatePool(512, 256, 125)
    assert pools_of(RECURRENT, 3, 64, 256).states == StatePool(512, 3, 1)


@pytest.mark.parametrize("memory", [INKLING_SMALL, RECURRENT, (LayerMemory(GLOBAL), LayerMemory(LOCAL))])
@pytest.mark.parametrize("budget", [10**8, 10**9, 10**11])
def test_a_budget_is_used_and_not_exceeded(memory, budget):
    pools = largest_pools(memory, 10**9, 64, 256, budget)
    assert pool_bytes(memory, pools) <= budget
    more = pools_of(memory, pools.num_pages + 1, 64, 256, budget)
    assert pool_bytes(memory, more) > budget
    if pools.states and pools.num_pages:
        assert pools.states.num_live * bytes_per_sequence(memory) <= max(budget // 4, bytes_per_sequence(memory))


def test_no_more_pages_than_asked_for():
    assert largest_pools(INKLING_SMALL, 7, 64, 256, 10**15).num_pages == 7
    assert largest_pools(INKLING_SMALL, 7, 64, 256, 10).num_pages == 0
