"""Every (architecture, format) pair of docs/models.md: the numbers are the file's, the logits transformers'."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.models import formats, run
from tests.models.families import family_questions
from tests.models.test_goldens import BOUND, errors, golden
from zerokl import checkpoints, models
from zerokl.checkpoints.quantised import LAYOUTS
from zerokl.config import Config
from zerokl.models import Model


def load(folder, architecture: str, form: str) -> Model:
    return models.load(checkpoints.open(formats.write(folder, architecture, form)), Config())


def error_of(model: Model, architecture: str, form: str) -> float:
    """How many times transformers' float32 error ours is, at most."""
    arrays, _ = golden(formats.golden_name(architecture, form))
    found = []
    for i, question in enumerate(family_questions(formats.OF_ARCHITECTURE[architecture])):
        logits = run.logits(model, question.tokens, question.rows)[:, question.ids]
        found += errors(logits, arrays[f"{i}/float32"], arrays[f"{i}/float64"]).values()
    return max(found)


@pytest.mark.parametrize(("architecture", "form"), formats.rows())
def test_logits_are_as_near_to_float64_as_transformers_are(architecture, form, tmp_path):
    assert error_of(load(tmp_path, architecture, form), architecture, form) <= BOUND


@cache
def bits(architecture: str, form: str, folder) -> bytes:
    question = family_questions(formats.OF_ARCHITECTURE[architecture])[0]
    return run.logits(load(folder, architecture, form), question.tokens, question.rows).tobytes()


@pytest.mark.parametrize("architecture", [a for a, form in formats.rows() if form == "GGUF BF16"])
def test_formats_of_equal_numbers_give_equal_bits(architecture, tmp_path):
    by_numbers: dict[str, set[bytes]] = {}
    for i, (form, numbers) in enumerate(formats.FORMATS.items()):
        by_numbers.setdefault(numbers, set()).add(bits(architecture, form, tmp_path / str(i)))
    assert [len(found) for found in by_numbers.values()] == [1, 1, 1]
    assert len(set().union(*by_numbers.values())) == 3


def test_every_block_type_is_in_some_matrix(tmp_path):
    path = formats.write(tmp_path, "LlamaForCausalLM", "GGUF, 14 types, 2 parts")
    stored = {tensor.dtype for tensor in checkpoints.open(path).tensors.values()}
    assert stored == {"F32", "F16", "BF16", *LAYOUTS}


def test_a_file_opened_by_any_of_its_parts_is_the_same(tmp_path):
    path = formats.write(tmp_path, "Qwen2ForCausalLM", "GGUF, 14 types, 2 parts")
    parts = sorted(tmp_path.glob("*.gguf"))
    assert path == parts[1]
    first, last = map(checkpoints.open, parts)
    assert first.digest == last.digest
    assert first.config == last.config
    assert all(np.array_equal(tensor.float32(), last.tensors[name].float32()) for name, tensor in first.tensors.items())
