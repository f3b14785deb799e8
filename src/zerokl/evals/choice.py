"""Multiple choice (MMLU's form) from a local file: the choice of the likeliest letter after "Answer:"; ties are wrong.

Lines of {"question", "choices": [...], "answer": index}. Scored, not generated, so it needs the native route.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import orjson

from zerokl.errors import ConfigError
from zerokl.evals.asking import Asker, prompt_hash
from zerokl.evals.gsm8k import Item
from zerokl.evals.results import Answered, Head, Results, ResultsFile
from zerokl.evals.run import answer_all

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def prompt_of(row: dict[str, object], answered: bool = False) -> str:
    choices = row["choices"]
    assert isinstance(choices, list)
    shown = "\n".join(f"{LETTERS[index]}. {choice}" for index, choice in enumerate(choices))
    return f"Question: {row['question']}\n{shown}\nAnswer:" + (f" {LETTERS[_index(row)]}\n\n" if answered else "")


async def run_choice(
    asker: Asker,
    data: Path,
    path: Path,
    *,
    shots: int = 0,
    questions: int | None = None,
    parallel: int = 64,
    overwrite: bool = False,
    done: Callable[[Answered], None] = lambda _: None,
) -> Results:
    """The first `shots` lines are shown and not asked. Raises ConfigError for a malformed file."""
    rows = read(data)
    head = "".join(prompt_of(row, answered=True) for row in rows[:shots])
    asked = rows[shots:][:questions]
    digest = hashlib.sha256((head + "".join(prompt_of(row, answered=True) for row in asked)).encode()).hexdigest()[:16]
    settings = {"shots": shots, "questions": len(asked), "data": digest}

    async def answer(item: Item) -> Answered:
        row, prompt = asked[item.id], item.question
        scores = [math.fsum(await asker.score(prompt, f" {LETTERS[index]}")) for index in range(_num_choices(row))]
        best = [index for index, score in enumerate(scores) if score == max(scores)]
        return Answered(
            id=item.id,
            prompt=prompt_hash(prompt),
            verdict="right" if best == [_index(row)] else "wrong",
            value=" ".join(LETTERS[index] for index in best),
            logprobs=scores,
        )

    file = ResultsFile(path, Head("choice", settings, await asker.server()), overwrite=overwrite)
    items = [Item(number, head + prompt_of(row), "") for number, row in enumerate(asked)]
    return await answer_all(file, items, answer, parallel, done)


def read(path: Path) -> list[dict[str, object]]:
    try:
        rows = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for number, row in enumerate(rows, 1):
        try:
            if not 0 <= _index(row) < _num_choices(row) <= len(LETTERS) or not isinstance(row["question"], str):
                raise ValueError("the answer is no index of the choices")
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}:{number}: not a question with choices and answer: {error}") from None
    return rows


def _index(row: dict[str, object]) -> int:
    answer = row["answer"]
    if isinstance(answer, bool) or not isinstance(answer, int):
        raise TypeError(f"answer must be an index, not {answer!r}")
    return answer


def _num_choices(row: dict[str, object]) -> int:
    choices = row["choices"]
    if not isinstance(choices, list):
        raise TypeError("choices must be a list")
    return len(choices)
