"""Shards: each file exactly once, the same cut in whatever order, near the optimum; and our own suites."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokl.errors import ConfigError
from zerokl.suites.cli import cut_shards
from zerokl.suites.partition import Times, partition, shards_needed
from zerokl.suites.registration import Registration
from zerokl.suites.registry import Registry, collect, files_with_tests
from zerokl.suites.table import find


@pytest.fixture(scope="module")
def ours() -> Registry:
    return collect(find(Path(__file__).resolve().parent))


times = st.lists(st.integers(1, 50), min_size=1, max_size=25)


def files_of(seconds: list[int]) -> list[Registration]:
    return [Registration(f"test_{number}.py", "cpu", time, "base-a", "cpu") for number, time in enumerate(seconds)]


@given(seconds=times, num_shards=st.integers(1, 6), order=st.randoms(use_true_random=False))
def test_each_file_is_in_exactly_one_shard_whatever_the_order(seconds: list[int], num_shards: int, order) -> None:
    files = files_of(seconds)
    cut = partition(files, num_shards, Times().seconds(files))
    assert sorted(one.file for shard in cut for one in shard.registrations) == sorted(one.file for one in files)
    assert all(shard.seconds == sum(one.est_time for one in shard.registrations) for shard in cut)
    order.shuffle(files)
    assert partition(files, num_shards, Times().seconds(files)) == cut


@given(seconds=times, num_shards=st.integers(1, 6))
def test_the_longest_shard_is_near_what_is_possible(seconds: list[int], num_shards: int) -> None:
    """Against lower bounds of the optimum: Graham's bound for any list order, which longest-first keeps too."""
    files = files_of(seconds)
    longest = max(shard.seconds for shard in partition(files, num_shards, Times().seconds(files)))
    assert longest <= sum(seconds) / num_shards + (1 - 1 / num_shards) * max(seconds) + 1e-9


def test_longest_first_beats_the_given_order() -> None:
    """Taken in order, 1 1 1 1 4 on two shards gives 6 at worst; longest first gives the optimum, 4."""
    files = files_of([1, 1, 1, 1, 4])
    assert sorted(shard.seconds for shard in partition(files, 2, Times().seconds(files))) == [4, 4]


def test_measured_times_replace_estimates_and_warn_after_three_runs() -> None:
    (one,) = files_of([10])
    measured = Times()
    for seconds in (30.0, 31.0):
        measured.add(one, seconds)
    assert measured.seconds([one]) == {one: 30.5}
    assert measured.warnings([one]) == []
    measured.add(one, 29.0)
    assert measured.warnings([one]) == ["test_0.py: est_time is 10 s, measured 30.0 s"]
    again = Times(measured.content())
    assert again.seconds([one]) == {one: 30.0}
    assert again.digest != Times().digest
    again.add(one, 11.0)
    assert again.warnings([one]) == []


def test_enough_shards_for_the_limit() -> None:
    assert [shards_needed(total, 100) for total in (0, 80, 100, 260)] == [1, 1, 2, 3]


def test_our_own_files_are_all_registered_and_fit_their_shards(ours: Registry) -> None:
    assert {one.file for one in ours.registrations} == {
        path.relative_to(ours.table.root).as_posix() for path in files_with_tests(ours.table.folder)
    }
    for stage in ours.table.stages.values():
        files = ours.chosen(stages=[stage.name], nightly=stage.name == "nightly")
        assert files, f"{stage.name} has no files"
        assert {one.runner_config for one in files} <= set(ours.table.runners)
        cut = cut_shards(ours, files, stage.shards, Times())
        assert sorted(one.file for shard in cut for one in shard.registrations) == sorted(one.file for one in files)


def test_a_shard_over_its_limit_is_refused(ours: Registry) -> None:
    files = ours.chosen(stages=["base-a"])
    measured = Times()
    measured.add(files[0], 1e6)
    with pytest.raises(ConfigError, match="a shard would take"):
        cut_shards(ours, files, 1, measured)
