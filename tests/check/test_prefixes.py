"""The predicted count of cached tokens."""

from __future__ import annotations

import pytest

from zerokl.check.answers import Ask
from zerokl.check.prefixes import PrefixModel


@pytest.mark.parametrize(
    ("computed", "asked", "score_from", "cached"),
    [
        (8, 8, None, 4),  # at least one token is computed, so the second page is not used
        (8, 9, None, 8),
        (7, 12, None, 4),
        (12, 12, 9, 8),
        (12, 12, 0, 0),
        (3, 12, None, 0),
    ],
)
def test_cached_tokens_are_whole_pages_below_the_limit(
    computed: int, asked: int, score_from: int | None, cached: int
) -> None:
    model = PrefixModel(page_size=4)
    model.learn(range(12), computed)
    assert model.predict(Ask(tuple(range(asked)), 1, score_from=score_from)) == cached


def test_another_branch_shares_only_the_pages_before_it_parts() -> None:
    model = PrefixModel(page_size=4)
    model.learn(range(12), 12)
    assert model.predict(Ask((0, 1, 2, 3, 4, 99, 6, 7, 8), 1)) == 4


def test_flush_forgets_and_pressure_ends_certainty() -> None:
    model = PrefixModel(page_size=4, capacity_tokens=16)
    model.learn(range(8), 8)
    assert model.certain
    model.learn(range(50, 62), 12)
    assert not model.certain
    model.flush()
    assert model.certain
    assert model.predict(Ask(tuple(range(9)), 1)) == 0
