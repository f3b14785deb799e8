"""Answers that end at a stop id: at the same token alone and in company, whole or streamed, and nothing stays behind.

An engine that runs a step ahead has computed one more token when it sees the stop: it must neither be sent nor cached.
"""

from __future__ import annotations

from dataclasses import replace

from zerokl.check.answers import Answer, Ask
from zerokl.check.cases.base import Case, Cost
from zerokl.check.cases.common import standard_ask, standard_asks
from zerokl.check.lab import Lab
from zerokl.check.targets.base import Can

COUNT, NEIGHBOURS = 5, 2
EARLIEST = 2
"""Tokens in front of the stop, so that the answer has begun to be decoded."""


async def stops(lab: Lab) -> None:
    """Each answer is known without a stop; one of its own tokens then becomes the stop."""
    asks = [ask for one in standard_asks(lab, COUNT) if (ask := await _stopping(lab, one)) is not None]
    lab.require(bool(asks), "no answer had a token of its own to stop at")
    for ask in asks:
        _judge(lab, ask, (await lab.reference(ask))[0])
    company = [ask.unscored() for ask in asks] + [standard_ask(lab, 90 + n).unscored() for n in range(NEIGHBOURS)]
    for how, batch in (("stopping in company", company), ("stopping in company, reversed", company[::-1])):
        await lab.flush()
        for ask, group in zip(batch, await lab.together(batch, how), strict=True):
            if ask.stop is not None:
                _judge(lab, ask, group[0])
    await lab.flush()
    for number, ask in enumerate(asks):
        await _second_turn(lab, ask.unscored(), number)


async def _stopping(lab: Lab, ask: Ask) -> Ask | None:
    """The ask with the first token as its stop that the answer hasn't had before; None if it only repeats itself."""
    output = (await lab.reference(ask))[0].output
    new = [token for index, token in enumerate(output) if index >= EARLIEST and token not in output[:index]]
    return replace(ask, stop=new[0]) if new else None


def _judge(lab: Lab, ask: Ask, answer: Answer) -> None:
    """The stop itself may be part of the answer or not; what follows it may not."""
    at = answer.output.index(ask.stop) if ask.stop in answer.output else len(answer.output) - 1
    leaked = len(answer.output) - at - 1
    lab.happened(
        answer.stopped and not leaked,
        "answers ended at their stop",
        f"tokens after the stop: {leaked}" if leaked else f"an answer ended by {answer.finish!r}, not at its stop",
    )


async def _second_turn(lab: Lab, ask: Ask, number: int) -> None:
    """On what the stopped answer left in the cache; streamed, where the server streams."""
    if lab.can(Can.STREAM):
        first = (await lab.stream(ask, "stopping, streamed"))[0]
    else:
        first = (await lab.alone(ask, "stopping, warm"))[0]
    second = lab.greedy((*first.text_ids, *lab.prompts.prompt(lab.page, 980 + number, "random")), 2).unscored()
    await lab.alone(second, "a turn after a stop")
    await lab.reference(second)


def _cost(lab: Lab) -> Cost:
    prefill, new = sum(len(ask.ids) for ask in standard_asks(lab, COUNT)), COUNT * (EARLIEST + 2)
    company = 2 * (new + NEIGHBOURS * lab.sizes.new_tokens)
    whole = COUNT * lab.sizes.new_tokens
    return Cost(6 * prefill + 2 * COUNT * lab.page, alone=whole + 2 * new + 4 * COUNT, crowd=company, answers=7 * COUNT)


CASE = Case("stops", "answers that end at a stop", frozenset({Can.STOPS, Can.TOKEN_IDS}), stops, _cost, quick=False)
