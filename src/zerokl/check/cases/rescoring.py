"""Generate, then score the whole text by prefill: what SGLang's KL tests do, bit for bit and for the prompt too."""

from __future__ import annotations

from zerokl.check.answers import Answer
from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_asks, standard_cost
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can


async def rescoring(lab: Lab) -> None:
    for ask in standard_asks(lab):
        await _rescore(lab, (await lab.reference(ask))[0])
    long_ask = lab.greedy(lab.prompts.prompt(lab.page // 2 + 3, 900), lab.sizes.long_tokens)
    await _rescore(lab, (await lab.reference(long_ask))[0])


async def _rescore(lab: Lab, generated: Answer) -> None:
    ask = lab.greedy(generated.text_ids, 0)
    scored = (await lab.cold(ask, "prompt and answer scored by prefill"))[0]
    rows = sum(row.phase == "scored" for row in scored.rows)
    lab.happened(
        rows == len(ask.ids) - 1,
        "every token of the text scored in one prefill",
        f"{rows} scores of a text of {len(ask.ids)} tokens",
    )


def _cost(lab: Lab) -> Cost:
    pool = standard_cost(lab)
    long = Cost(lab.page, lab.sizes.long_tokens, 0, 1)
    return pool + long + Cost(prefill=pool.prefill + pool.alone + long.prefill + long.alone, answers=pool.answers + 1)


CASE = Case(
    "rescoring",
    "generated against scored by prefill",
    frozenset({Can.PROMPT_LOGPROBS, Can.TOKEN_IDS}),
    rescoring,
    _cost,
)
