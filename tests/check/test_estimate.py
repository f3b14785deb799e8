"""The estimate counts the work that the cases really give the server."""

from __future__ import annotations

import asyncio

import pytest

from tests.check.fake_engine import FakeEngine
from tests.check.fake_server import FakeServer, InProcess
from zerokl.check.cases import CASES
from zerokl.check.checking import Options, make_lab
from zerokl.check.lab import Lab
from zerokl.check.rates import Rates, fit, total_cost
from zerokl.check.run import run_case
from zerokl.check.sizes import DEFAULT
from zerokl.check.targets.base import Can
from zerokl.check.targets.zerokl import ZeroklTarget
from zerokl.check.wire import Wire

pytestmark = pytest.mark.slow

ASKING = [case for case in CASES if not case.looks_back and Can.UPDATE_WEIGHTS not in case.needs]


def lab_on(engine: FakeEngine, options: Options = Options("http://fake")) -> Lab:
    async def make() -> Lab:
        wire = Wire("http://fake", transport=InProcess(FakeServer(engine)))
        return await make_lab(await ZeroklTarget.make(wire), options)

    return asyncio.run(make())


def test_estimated_tokens_are_near_the_ones_computed() -> None:
    engine = FakeEngine(pool=2000, two_tiers=True)
    lab = lab_on(engine)
    wrong = []
    for case in ASKING:
        before = engine.tokens.copy()
        asyncio.run(run_case(lab, case))
        cost = case.cost(lab)
        for name, estimate in (("prefill", cost.prefill), ("decode", cost.alone + cost.crowd)):
            actual = engine.tokens[name] - before[name]
            if not 0.6 * actual - 20 <= estimate <= 1.6 * actual + 20:
                wrong.append((case.name, name, estimate, actual))
    assert wrong == []


def test_sizes_shrink_until_the_estimate_fits_the_budget() -> None:
    lab = lab_on(FakeEngine())
    rates = Rates(prefill=1000, alone=40, crowd=100)
    full = rates.seconds(total_cost(ASKING, lab))
    fit(lab, ASKING, rates, full / 2)
    assert rates.seconds(total_cost(ASKING, lab)) <= full / 2
    assert lab.sizes.new_tokens < DEFAULT.new_tokens


def test_sizes_never_shrink_to_nothing() -> None:
    lab = lab_on(FakeEngine())
    fit(lab, ASKING, Rates(1, 1, 1), 0.1)
    assert lab.sizes.new_tokens >= 8
    assert lab.sizes.prompts >= 2
    assert lab.sizes.neighbours
