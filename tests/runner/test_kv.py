"""The pools: how many pages, how many bytes, and that an idle pool costs nothing."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.models.memory import tiny_model
from zerokl.config import Config
from zerokl.errors import ConfigError
from zerokl.runner import bytes_per_token, pages_that_fit
from zerokl.runner.kv import KvPools, tokens_that_fit
from zerokl.runner.memory import available_in_system, available_memory, left_in_control_group

GIB = 2**30


def test_a_token_takes_keys_and_values_of_every_layer():
    assert bytes_per_token(tiny_model()) == 2 * 2 * 2 * 16 * 4


def test_a_given_size_wins_and_is_whole_pages():
    model = tiny_model()
    assert pages_that_fit(model, Config(max_total_tokens=200, page_size=64)) == 3
    assert pages_that_fit(model, Config(max_total_tokens=200, page_size=1)) == 200


def test_less_than_a_page_is_refused():
    with pytest.raises(ConfigError, match=r"10 token slots, less than one page of 64.*--max-total-tokens"):
        pages_that_fit(tiny_model(), Config(max_total_tokens=10))


def test_by_default_the_pool_is_a_quarter_of_free_memory_or_sixteen_long_sequences():
    model = tiny_model()
    assert tokens_that_fit(model, None, 4 * 512 * 1000) == 1000
    assert tokens_that_fit(model, None, 1000 * GIB) == 16 * 4096
    assert tokens_that_fit(model, None, 0) == 0


def test_a_fraction_is_of_weights_and_pool_together():
    model = tiny_model()
    everything = model.weight_bytes + 512 * 10_000
    assert tokens_that_fit(model, 0.5, 512 * 10_000) == (everything // 2 - model.weight_bytes) // 512
    assert tokens_that_fit(model, 0.05, 0) == 0


def test_an_unwritten_pool_takes_no_memory():
    before = resident_bytes()
    pools = KvPools(tiny_model(), 4 * GIB // (64 * 512), 64)
    assert resident_bytes() - before < 16 * 2**20
    assert sum(array.nbytes for array in (*pools.keys, *pools.values)) == 4 * GIB
    assert pools.keys[1][77, 1, 3, 5] == 0


def test_a_page_has_the_keys_and_values_of_all_layers_side_by_side():
    pools = KvPools(tiny_model(), 3, 8)
    (slab,) = pools.slabs.values()
    arrays = [array for pair in zip(pools.keys, pools.values, strict=True) for array in pair]
    for number, array in enumerate(arrays, start=1):
        array[1] = number
    assert not slab[[0, 2]].any()
    assert slab[1].tolist() == np.repeat(np.arange(1, 5), arrays[0][1].size).tolist()
    assert [spec.window for spec in pools.specs] == [None, None]


def test_a_pool_can_be_filled_with_nan_for_tests():
    pools = KvPools(tiny_model(), 2, 8, fill=np.nan)
    assert all(np.isnan(array).all() for array in (*pools.keys, *pools.values))


def test_free_memory_is_what_the_system_and_the_control_group_leave(tmp_path: Path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  100 kB\nMemAvailable:   40 kB\n")
    assert available_in_system(meminfo) == 40 * 1024
    assert available_in_system(tmp_path / "none") == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    assert left_in_control_group(tmp_path) == 2**63
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert left_in_control_group(tmp_path) == 2**63
    (tmp_path / "memory.max").write_text("100\n")
    assert left_in_control_group(tmp_path) == 95
    assert 0 < available_memory() < 2**50


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
