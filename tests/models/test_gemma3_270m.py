"""The real Gemma 3 270M from GGUF: transformers' logits and text, llama.cpp's ids."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from tests.models import run
from tests.models.gemma import GEMMA3_PROMPTS, gemma3_file
from tests.models.test_goldens import BOUND, errors, golden
from zerokl import checkpoints, models
from zerokl.config import Config

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not gemma3_file().exists(), reason="tools/fetch_gemma3.py brings the model (240 MB)"),
]
NUMBERS = range(len(GEMMA3_PROMPTS))


@pytest.fixture(scope="module")
def checkpoint():
    checkpoint = checkpoints.open(gemma3_file())
    assert checkpoint.digest == golden("gemma3-270m")[1]["model"]
    return checkpoint


@pytest.fixture(scope="module")
def model(checkpoint):
    return models.load(checkpoint, Config())


def asked(number: int) -> dict:
    return golden("gemma3-270m")[1]["prompts"][list(GEMMA3_PROMPTS)[number]]


def test_ids_are_llama_cpps(checkpoint):
    """As `llama-tokenize --no-escape` gives them."""
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer.tokenizer_json)
    assert tokenizer.encode("The capital of France is").ids == [2, 818, 5279, 529, 7001, 563]
    text = "Hello  world\n\n\tx <b> 1234 é 漢字  <start_of_turn>user"
    expected = [2, 9259, 138, 12392, 108, 255968, 236781, 236743, 200, 236743]
    expected += [236770, 236778, 236800, 236812, 1559, 236743, 201637, 138, 105, 2364]
    assert tokenizer.encode(text).ids == expected


@pytest.mark.parametrize("number", NUMBERS, ids=list(GEMMA3_PROMPTS))
def test_logits_are_as_near_to_float64_as_transformers_are(model, number):
    arrays, prompt = golden("gemma3-270m")[0], asked(number)
    found = run.logits(model, prompt["tokens"], prompt["rows"])[:, prompt["ids"]]
    measured = errors(found, arrays[f"{number}/float32"], arrays[f"{number}/float64"])
    assert max(measured.values()) <= BOUND, measured


def test_greedy_text_is_transformers(model):
    prompts = [asked(number)["tokens"][: asked(number)["prompt_tokens"]] for number in NUMBERS]
    expected = [golden("gemma3-270m")[0][f"{number}/greedy32"].tolist() for number in NUMBERS]
    assert run.greedy(model, prompts, len(expected[0])) == expected
    assert max(map(len, prompts)) > 512, "one is longer than the window"
