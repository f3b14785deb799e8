"""/v1/completions with echo against /generate: two routes to the same numbers."""

from __future__ import annotations

from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_asks, standard_cost
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can


async def echo(lab: Lab) -> None:
    for ask in standard_asks(lab):
        await lab.reference(ask)
        await lab.echo(ask.generating(0), "echoed and scored by /v1/completions")
    generated = (await lab.echo(standard_asks(lab)[0], "echoed and continued by /v1/completions"))[0]
    lab.happened(
        any(row.phase == "scored" for row in generated.rows),
        "prompts scored through /v1/completions",
        "/v1/completions gave no prompt scores",
    )


def _cost(lab: Lab) -> Cost:
    pool = standard_cost(lab)
    return Cost(prefill=1.5 * pool.prefill, alone=lab.sizes.new_tokens, answers=pool.answers + 1)


CASE = Case("echo", "/v1/completions echo against /generate", frozenset({Can.ECHO}), echo, _cost)
