"""Answers kept in a file: last month's bits against today's server.

One JSON object per line: a header (schema, server, seed), then one line per request with its samples. Logprobs are
written as the hex of their float32 bits, so nothing is lost on the way.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from zerokl.check.answers import Answer, Ask, Row
from zerokl.check.cases import Case, Cost
from zerokl.check.cases.common import standard_asks
from zerokl.check.files import write_named
from zerokl.check.lab import Lab
from zerokl.check.ledger import Setting
from zerokl.check.outcome import CouldNotRun
from zerokl.check.run import CaseResult, verdict
from zerokl.check.tally import Tally
from zerokl.check.targets.base import Can

SCHEMA = "zerokl.golden/1"
PROMPTS = 12


@dataclass(frozen=True, slots=True)
class Golden:
    """A file's content."""

    header: dict[str, Any]
    answers: tuple[tuple[Ask, tuple[Answer, ...]], ...]


def asks_to_record(lab: Lab) -> list[Ask]:
    """Greedy prompts of the shared pool, a long answer, and seeded samples of each where the server takes seeds."""
    asks = standard_asks(lab, PROMPTS)
    asks.append(lab.greedy(lab.prompts.prompt(lab.page // 2 + 3, 900), lab.sizes.long_tokens))
    if lab.can(Can.SEEDS):
        asks += [replace(ask, temperature=0.8, top_p=0.95, seed=7000 + n) for n, ask in enumerate(asks[:4])]
    return asks


async def record(lab: Lab, path: Path) -> int:
    """Writes the answers of `asks_to_record`, each alone and cold; how many requests they were."""
    asks = asks_to_record(lab)
    lines = [orjson.dumps(_header(lab))]
    for ask in asks:
        answers = await lab.reference(ask)
        lines.append(orjson.dumps({"ask": _ask_json(ask), "samples": [_answer_json(answer) for answer in answers]}))
    if lab.tally.failures:
        raise CouldNotRun(lab.tally.failures[0])
    write_named(path, b"\n".join(lines) + b"\n")
    return len(asks)


def load(path: Path) -> Golden:
    """Raises CouldNotRun if the file is not a recording that this version reads."""
    try:
        lines = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        if not lines or lines[0].get("schema") != SCHEMA:
            raise CouldNotRun(f"{path}: not a recording of schema {SCHEMA}")
        return Golden(lines[0], tuple(_entry(line) for line in lines[1:]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise CouldNotRun(f"{path}: damaged recording: {type(error).__name__} {error}") from error


async def replay(lab: Lab, golden: Golden) -> CaseResult:
    """Asks the server everything that was recorded, and compares."""
    case = Case("replay", f"recorded {golden.header['recorded']}", frozenset(), _nothing, lambda _: Cost())
    tally = lab.tally = Tally(case.name)
    setting = Setting("recorded", golden.header["recorded"], server=str(golden.header["server"].get("model", "")))
    started = time.monotonic()
    try:
        for ask, answers in golden.answers:
            for number, answer in enumerate(answers):
                lab.ledger.observe(answer, replace(setting, number=number), scaled=not lab.can(Can.RAW_LOGPROBS))
            await lab.cold(ask, "today, alone, cold")
        lab.happened(tally.values > 0, f"{len(golden.answers)} recorded requests asked again", "nothing was recorded")
    except CouldNotRun as error:
        tally.fail(str(error))
    status, reason = verdict(tally)
    return CaseResult(case, status, reason, tally, time.monotonic() - started)


async def _nothing(_: Lab) -> None:
    """The case needs the file, too."""


def _header(lab: Lab) -> dict[str, Any]:
    recorded = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return {"schema": SCHEMA, "recorded": recorded, "server": asdict(lab.facts), "seed": lab.seed}


def _ask_json(ask: Ask) -> dict[str, Any]:
    return asdict(ask)


def _answer_json(answer: Answer) -> dict[str, Any]:
    rows = [[row.position, row.token, _hex(row.logprob), row.phase, list(_pairs(row.top))] for row in answer.rows]
    return {"sample": answer.sample, "output": list(answer.output), "rows": rows}


def _entry(line: dict[str, Any]) -> tuple[Ask, tuple[Answer, ...]]:
    ask = Ask(**{**line["ask"], "ids": tuple(line["ask"]["ids"])})
    return ask, tuple(_answer(ask, sample) for sample in line["samples"])


def _answer(ask: Ask, sample: dict[str, Any]) -> Answer:
    rows = tuple(
        Row(position, token, _bits(logprob), tuple((one, int(bits, 16)) for one, bits in top), phase)
        for position, token, logprob, phase, top in sample["rows"]
    )
    return Answer(ask, tuple(sample["output"]), rows, sample=sample["sample"])


def _pairs(top: Iterable[tuple[int, int]]) -> Iterator[Sequence[Any]]:
    return ([token, _hex(bits)] for token, bits in top)


def _hex(bits: int | None) -> str | None:
    return None if bits is None else f"{bits:08x}"


def _bits(text: str | None) -> int | None:
    return None if text is None else int(text, 16)
