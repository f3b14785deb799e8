"""GSM8K by completion: prompts, stop strings, and the number in an answer. Three modes that never share a table.

`default`: shots from the training file, questions from the test file, a stop string that can't cut an answer short, and
the number after the last "####", or else the last one, with sign and decimals.
`compat`: what SGLang's few_shot_gsm8k does, to compare with published figures: shots and questions from one file (so
the shots are asked too), the last run of digits.
`cot`: lm-eval's gsm8k_cot with its strict rule: "Q:" and "A:", the number after "The answer is", compared as text.
Its eight shots are lm-eval's: give them as the training file.
"""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

import orjson

from zerokl.errors import ConfigError

MARKED = re.compile(r"####\s*(-?)\s*\$?\s*(-?)(\d[\d,]*(?:\.\d+)?|\.\d+)")
NUMBER = re.compile(r"(?<![\w.])(-?)\$?(-?)(\d[\d,]*(?:\.\d+)?|\.\d+)")
CONCLUDED = re.compile(r"The answer is (\-?[0-9.,]+).")
STOPS = {
    "default": ("\nQuestion:",),
    "compat": ("Question", "Assistant:", "<|separator|>"),
    "cot": ("Q:", "</s>", "<|im_end|>"),
}


@dataclass(frozen=True, slots=True)
class Item:
    """A question of the file, by its line number."""

    id: int
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked, and how answers are read."""

    mode: str
    items: tuple[Item, ...]
    shots: tuple[Item, ...]
    digest: str
    """Of all prompts and answers, in order: two files with it asked the same."""

    @property
    def stops(self) -> tuple[str, ...]:
        return STOPS[self.mode]

    def prompt(self, item: Item) -> str:
        asked, said = ("Q:", "A:") if self.mode == "cot" else ("Question:", "Answer:")
        shown = "".join(f"{asked} {shot.question}\n{said} {shot.answer}\n\n" for shot in self.shots)
        return f"{shown}{asked} {item.question}\n{said}"

    def value(self, text: str) -> Decimal | str | None:
        rules = {"default": number, "compat": last_digits, "cot": concluded}
        return rules[self.mode](text)

    def reference(self, item: Item) -> Decimal | str | None:
        return bare(item.answer.rpartition("####")[2].strip()) if self.mode == "cot" else self.value(item.answer)

    def verdict(self, item: Item, text: str, finish: str) -> str:
        """right, wrong, no number, or truncated; in others' modes a truncated text counts as what it says."""
        if self.mode == "default" and finish == "length":
            return "truncated"
        value = self.value(text)
        if value is None:
            return "no number"
        return "right" if value == self.reference(item) else "wrong"


def make_task(folder: Path, *, mode: str = "default", shots: int = 5, questions: int | None = 200) -> Task:
    """From a folder with test.jsonl and train*.jsonl. Raises ConfigError for a missing or malformed file."""
    test = read(folder / "test.jsonl")
    if mode == "compat":
        pool = test
    else:
        trains = sorted(folder.glob("train*.jsonl"))
        if not trains and shots:
            raise ConfigError(f"{folder} has no train*.jsonl to take {shots} shots from")
        pool = read(trains[0]) if trains else ()
    if shots > len(pool):
        raise ConfigError(f"{shots} shots were asked for, {len(pool)} are there")
    task = Task(mode, test[:questions], pool[:shots], "")
    whole = hashlib.sha256()
    for item in task.items:
        whole.update(f"{task.prompt(item)}\0{item.answer}\0".encode())
    return Task(mode, task.items, task.shots, whole.hexdigest()[:16])


def read(path: Path) -> tuple[Item, ...]:
    try:
        rows = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        return tuple(Item(number, row["question"], row["answer"]) for number, row in enumerate(rows))
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}") from None
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not lines of question and answer: {error}") from None


def number(text: str) -> Decimal | None:
    """After the last "####", else the last number: sign, thousands' commas, decimals; "$1,200.50." is 1200.5."""
    found = MARKED.findall(text) or NUMBER.findall(text)
    if not found:
        return None
    outer, inner, digits = found[-1]
    try:
        value = Decimal(digits.replace(",", ""))
    except InvalidOperation:
        return None
    return -value if outer or inner else value


def last_digits(text: str) -> Decimal | None:
    """The classic rule: commas out, last run of digits, read as a Python literal (so "05" is invalid)."""
    runs = re.findall(r"\d+", text.replace(",", ""))
    if not runs:
        return None
    try:
        return Decimal(ast.literal_eval(runs[-1]))
    except (SyntaxError, ValueError):
        return None


def concluded(text: str) -> str | None:
    """What follows the first "The answer is"."""
    found = CONCLUDED.search(text)
    return bare(found[1]) if found else None


def bare(text: str) -> str:
    """Without commas, dollars and a last full stop: what lm-eval compares, as text, so 18.0 is not 18."""
    return re.sub(r"\.$", "", text.replace(",", "").replace("$", ""))
