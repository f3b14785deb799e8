"""The same comparison with transformers at work here, on weights that no golden has seen."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints.tiny import make_tiny_llama
from tests.models import run
from tests.models.test_goldens import BOUND, errors
from tests.models.variants import SEED, VARIANTS, overrides_of, questions
from zerokl import checkpoints, models
from zerokl.checkpoints.cache_folder import cache_folder
from zerokl.config import Config

ORACLE = Path(os.environ.get("ORACLE", cache_folder() / "oracle")) / "bin" / "python"
"""Where `make oracles` puts it."""


@pytest.mark.oracle
@pytest.mark.parametrize("variant", VARIANTS)
def test_fresh_weights_give_transformers_logits_and_greedy_tokens(variant, tmp_path):
    assert ORACLE.exists(), "make oracles installs torch and transformers"
    folder = make_tiny_llama(tmp_path / "model", SEED + 1, **overrides_of(variant))
    model = models.load(checkpoints.open(folder), Config())
    asked = questions(model.vocab_size)
    (tmp_path / "questions.json").write_text(json.dumps([asdict(question) for question in asked]))
    script = Path(__file__).parents[2] / "tools" / "oracle_torch.py"
    command = [ORACLE, script, folder, tmp_path / "questions.json", tmp_path / "answers.npz"]
    subprocess.run(command, check=True, timeout=100)
    with np.load(tmp_path / "answers.npz") as answers:
        for i, question in enumerate(asked):
            found = run.logits(model, question.tokens, question.rows)[:, question.ids]
            assert max(errors(found, answers[f"{i}/float32"], answers[f"{i}/float64"]).values()) <= BOUND
        greedy = run.greedy(model, [asked[0].tokens], asked[0].new_tokens)
        assert greedy == [answers["0/greedy64"].tolist()]
