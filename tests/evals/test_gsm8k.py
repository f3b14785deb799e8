"""Prompts and extraction: compat mode against SGLang's script, default mode against its traps."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from zerokl.errors import ConfigError
from zerokl.evals.asking import prompt_hash
from zerokl.evals.gsm8k import last_digits, make_task, number

DATA = Path(__file__).parent / "gsm8k"
"""The first 8 test and 4 training questions of GSM8K (MIT, LICENSE beside them)."""

SGLANG_PROMPTS = (
    *("239293754edb5e2d", "699d01ce48a93f51", "908e1cbab58cede4", "1f85362f2a50347d"),
    *("05341fe808c7c7fb", "5d6b81e083f6f1bd", "f25ec19c616605d1", "2a80353b78afb8f8"),
)
"""Made by running get_few_shot_examples(lines, 5) + get_one_example(lines, i, False) of sglang 0.5.23's
test/few_shot_gsm8k.py on our file: the first 16 hex digits of each prompt's SHA-256."""

SGLANG_VALUES = [
    *(("3.50", 50), ("-4", 4), ("05", None), ("1.05", None), ("1,234", 1234), ("none", None), ("a 7 b 08", None)),
    *(("10 000", None), ("#### 5\n", 5), ("0", 0), ("12e3", 3), ("70,000 and 1", 1)),
]
"""By its get_answer_value; None is its -9999999. "000" it reads as 0, and so do we."""


def test_compat_prompts_are_sglangs_byte_for_byte() -> None:
    task = make_task(DATA, mode="compat", shots=5)
    assert tuple(prompt_hash(task.prompt(item)) for item in task.items) == SGLANG_PROMPTS
    assert task.stops == ("Question", "Assistant:", "<|separator|>")
    assert [task.value(item.answer) for item in task.items] == [18, 3, 70000, 540, 20, 64, 260, 160]


@pytest.mark.parametrize(("text", "value"), [(text, value) for text, value in SGLANG_VALUES if text != "10 000"])
def test_compat_values_are_sglangs(text: str, value: int | None) -> None:
    assert last_digits(text) == value


def test_compat_reads_only_zeros_as_zero() -> None:
    assert last_digits("10 000") == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("so 5 apples\n#### 18", "18"),
        ("#### 18\nThat is 3 more than 15.", "18"),
        ("#### $1,200.50", "1200.50"),
        ("#### -4", "-4"),
        ("The answer is 3.50.", "3.50"),
        ("It costs $1,234.", "1234"),
        ("It is -$4 then", "-4"),
        ("5-3", "3"),
        ("She has 05", "5"),
        ("1.05", "1.05"),
        (".5", ".5"),
        ("x7 and B2B", None),
        ("none", None),
        ("#### nothing, but 6", "6"),
    ],
)
def test_the_default_rule_reads_signs_commas_and_decimals(text: str, value: str | None) -> None:
    assert number(text) == (None if value is None else Decimal(value))


def test_default_shots_are_not_among_the_questions() -> None:
    task = make_task(DATA, shots=4)
    asked = {item.question for item in task.items}
    assert not asked & {shot.question for shot in task.shots}
    assert all(item.question not in task.prompt(task.items[0]) for item in task.items[1:])


def test_four_classes_and_a_truncated_text_is_its_own() -> None:
    task, compat = make_task(DATA, shots=1), make_task(DATA, mode="compat", shots=1)
    item = task.items[0]
    assert [task.verdict(item, text, "stop") for text in ("#### 18.0", "17", "no idea")] == [
        "right",
        "wrong",
        "no number",
    ]
    assert task.verdict(item, "#### 18", "length") == "truncated"
    assert compat.verdict(item, "#### 18", "length") == "right"


def test_too_many_shots_and_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="5 shots were asked for, 4 are there"):
        make_task(DATA, shots=5)
    (tmp_path / "test.jsonl").write_text('{"question": "?"}\n')
    with pytest.raises(ConfigError, match="not lines of question and answer"):
        make_task(tmp_path, shots=0)
