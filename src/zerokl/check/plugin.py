"""A pytest plugin for people who write their own consistency tests.

    pytest -p zerokl.check.plugin --consistency-url http://127.0.0.1:30000

def test_my_prompt(consistency):
    consistency.same([1, 2, 3], new_tokens=32, crowd=7)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from zerokl.check.checking import Options, make_lab, open_wire, with_scheme
from zerokl.check.divergence import summarise
from zerokl.check.lab import Lab
from zerokl.check.outcome import CouldNotRun
from zerokl.check.targets.detect import find_target
from zerokl.check.wire import Budget


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("consistency")
    group.addoption("--consistency-url", default="", help="The server that the `consistency` fixture asks.")


class Consistency:
    """One server. `same` fails the test if any of the circumstances changes a bit of the answer."""

    def __init__(self, url: str) -> None:
        self._options = Options(with_scheme(url))
        self._loop = asyncio.new_event_loop()
        self._wire = open_wire(self._options, self._options.url, Budget())
        self.lab: Lab = self._run_lab()

    def same(self, ids: Sequence[int], *, new_tokens: int = 32, crowd: int = 4, repeats: int = 2) -> int:
        """Alone and cold, again, warm, and among `crowd` others; how many values were compared."""
        return self._loop.run_until_complete(self._same(ids, new_tokens, crowd, repeats))

    def close(self) -> None:
        self._loop.run_until_complete(self._wire.close())
        self._loop.close()

    async def _same(self, ids: Sequence[int], new_tokens: int, crowd: int, repeats: int) -> int:
        lab, before = self.lab, self.lab.tally.values
        ask = lab.greedy(ids, new_tokens)
        for turn in range(1 + repeats):
            await lab.cold(ask, f"alone, cold ({turn + 1})")
        await lab.alone(ask.unscored(), "alone, warm")
        others = [lab.greedy(lab.prompts.prompt(7 + number, number), new_tokens).unscored() for number in range(crowd)]
        if others:
            await lab.together([ask.unscored(), *others], f"among {crowd} others")
        self._judge()
        return lab.tally.values - before

    def _judge(self) -> None:
        """Differences fail the test; what went wrong on the way fails it too, since nothing is proved then."""
        for comparison in self.lab.tally.comparisons:
            if comparison.differences:
                found = summarise(comparison)
                pytest.fail(
                    f"{found.differing} of {found.values} values differ from position {found.positions[0]} on "
                    f"(max {found.max_ulps} ulps): {found.first} / {found.other}"
                )
        if self.lab.tally.failures:
            pytest.fail(f"could not run: {self.lab.tally.failures[0]}")

    def _run_lab(self) -> Lab:
        async def make() -> Lab:
            return await make_lab(await find_target(self._wire), self._options)

        return self._loop.run_until_complete(make())


@pytest.fixture
def consistency(request: pytest.FixtureRequest) -> Iterator[Consistency]:
    """The server of --consistency-url; without the option the test is skipped."""
    url = request.config.getoption("--consistency-url")
    if not url:
        pytest.skip("no --consistency-url")
    try:
        server = Consistency(url)
    except CouldNotRun as error:
        pytest.fail(f"could not run: {error}")
    yield server
    server.close()
