"""The pytest fixture, used by a test of somebody else's."""

from __future__ import annotations

import pytest

from tests.check.test_cli import serving
from zerokl.check.plugin import Consistency


def test_clean_server_passes_and_says_how_many_values_it_compared() -> None:
    with serving("") as url:
        server = Consistency(url)
        assert server.same(range(40), new_tokens=12) > 100
        server.close()


def test_difference_fails_the_test_with_position_and_both_settings() -> None:
    with serving("every_fifth") as url:
        server = Consistency(url)
        with pytest.raises(pytest.fail.Exception, match=r"values differ from position \d+ on .*alone, cold \(1\)"):
            server.same(range(40), new_tokens=12, repeats=5)
        server.close()
