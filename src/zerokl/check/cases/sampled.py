"""Sampling with a seed: alone, in company and in another place, warm, streamed; and n samples of one prompt."""

from __future__ import annotations

from dataclasses import replace

from zerokl.check.answers import Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_ask, standard_asks, standard_length
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

TEMPERATURE, TOP_P = 0.8, 0.95
SAMPLES = 3


async def sampled(lab: Lab) -> None:
    asks = _asks(lab)
    alone = [(await lab.reference(ask))[0] for ask in asks]
    greedy = [(await lab.reference(ask))[0] for ask in standard_asks(lab)]
    lab.happened(
        any(one.output != other.output for one, other in zip(alone, greedy, strict=False)),
        "sampling differed from greedy",
        "sampling gave what greedy gives: no noise to compare",
    )
    await _seed_matters(lab, asks[1])
    crowd = [ask.unscored() for ask in asks] + [replace(ask.unscored(), seed=_seed(lab, 70)) for ask in asks[:2]]
    crowd.insert(1, replace(standard_ask(lab, 71), temperature=1.0).unscored())  # draws without a seed
    for how, batch in (("in company", crowd), ("in company, reversed", crowd[::-1])):
        await lab.flush()
        async with lab.watching() as watch:
            await lab.together(batch, f"seeded, {how}")
        watch.expect_width(len(batch), steps=max(1, lab.sizes.new_tokens // 8))
    await lab.alone(asks[0].unscored(), "seeded, warm")
    if lab.can(Can.STREAM):
        await lab.stream(asks[-1].unscored(), "seeded, streamed")


async def _seed_matters(lab: Lab, ask: Ask) -> None:
    """A server that ignores seeds may well repeat itself."""
    output = (await lab.reference(ask))[0].output
    others = [await lab.reference(replace(ask, seed=_seed(lab, 72 + number)).unscored()) for number in range(2)]
    lab.happened(
        any(other[0].output != output for other in others),
        "other seeds drew other tokens",
        "three seeds draw the same tokens: the seed is ignored",
    )


async def samples(lab: Lab) -> None:
    """n samples of one prompt, alone and again with another prompt; they must differ among themselves."""
    ask = replace(_asks(lab)[0], samples=SAMPLES, score_from=None, temperature=1.0)
    other = replace(ask, ids=standard_ask(lab, 60).ids)
    drawn = await lab.reference(ask)
    lab.happened(
        len({answer.output for answer in drawn}) > 1,
        "samples differed from each other",
        f"all {SAMPLES} samples are the same",
    )
    reseeded = await lab.reference(replace(ask, seed=_seed(lab, 73)))
    lab.happened(
        [answer.output for answer in reseeded] != [answer.output for answer in drawn],
        "another seed drew other samples",
        "two seeds draw the same samples: the seed is ignored where there are several",
    )
    await lab.flush()
    await lab.together([other, ask], f"{SAMPLES} samples each of two prompts")
    if lab.can(Can.STREAM):
        await lab.stream(ask, f"{SAMPLES} samples, streamed")


def _asks(lab: Lab) -> list[Ask]:
    return [
        replace(ask, temperature=TEMPERATURE, top_p=TOP_P, seed=_seed(lab, number))
        for number, ask in enumerate(standard_asks(lab))
    ] + ([_unseeded(lab)] if lab.can(Can.UNSEEDED_REPEATS) else [])


def _unseeded(lab: Lab) -> Ask:
    return replace(standard_ask(lab, 1), temperature=1.0)


def _seed(lab: Lab, number: int) -> int:
    return lab.random(f"seed {number}").randrange(2**31)


def _sampled_cost(lab: Lab) -> Cost:
    asks = _asks(lab)
    new = lab.sizes.new_tokens
    prefill = sum(len(ask.ids) for ask in asks)
    width = len(asks) + 3
    return Cost(3.3 * prefill, alone=(len(asks) + 4) * new, crowd=2 * width * new, answers=len(asks) + 2 * width + 4)


def _samples_cost(lab: Lab) -> Cost:
    tokens = 5 * SAMPLES * lab.sizes.new_tokens
    return Cost(prefill=7 * SAMPLES * standard_length(lab, 0), crowd=tokens, answers=5 * SAMPLES)


SAMPLED = Case("sampled", "seeded sampling in several circumstances", frozenset({Can.SEEDS}), sampled, _sampled_cost)
N_SAMPLES = Case(
    "samples",
    "n samples, alone against in company",
    frozenset({Can.SEEDS, Can.SAMPLES}),
    samples,
    _samples_cost,
    quick=False,
)
