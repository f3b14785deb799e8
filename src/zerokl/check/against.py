"""Two servers against each other: what one answered alone and cold is asked of the other, and the values meet."""

from __future__ import annotations

import time

from zerokl.check.cases import Case, Cost
from zerokl.check.cases.common import standard_asks
from zerokl.check.lab import Lab
from zerokl.check.outcome import CouldNotRun
from zerokl.check.run import CaseResult, verdict
from zerokl.check.tally import Tally
from zerokl.check.targets.base import Can


async def against(lab: Lab, other: Lab, url: str) -> CaseResult:
    """Asks `other` for every reference of `lab` (and takes some if there are none yet)."""
    case = Case("against", f"the same answers from {url}", frozenset(), _nothing, lambda _: Cost())
    other.ledger, other.server, other.tally = lab.ledger, url, Tally(case.name)
    started = time.monotonic()
    try:
        for ask in standard_asks(lab):
            await lab.reference(ask)
        for ask in (one for one in lab.references if one.stop is None or other.can(Can.STOPS)):
            await other.cold(ask, f"on {url}, alone, cold")
        other.happened(other.tally.values > 0, f"{len(lab.references)} requests asked of both", "nothing to compare")
    except CouldNotRun as error:
        other.tally.fail(str(error))
    status, reason = verdict(other.tally)
    return CaseResult(case, status, reason, other.tally, time.monotonic() - started)


async def _nothing(_: Lab) -> None:
    """The case runs on two labs, not on one."""
