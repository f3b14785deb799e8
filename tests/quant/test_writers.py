"""Checkpoints that the formats' own libraries wrote (tools/quant_writers.py): the same numbers, and they run.

The goldens hold what the library itself takes each weight for. The live test makes them anew.
"""

from __future__ import annotations

import json
import subprocess
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from tests.models import run
from tests.models.test_oracle_live import ORACLE
from zerokl import checkpoints, models
from zerokl.config import Config

GOLDENS = Path(__file__).parents[1] / "goldens" / "quant"
KINDS = sorted(path.name for path in GOLDENS.iterdir())
OPTIONS = {"modelopt-nvfp4": "modelopt_fp4", "modelopt-": "modelopt_fp8", "compressed-": "compressed-tensors"}


def same_numbers(folder: Path) -> None:
    tensors = checkpoints.open(folder).tensors
    said = json.loads((folder / "dequantised.json").read_text())
    assert len(said) == 7
    for name, digest in said.items():
        # One library takes the code of -0 for +0, the other doesn't: zeros have no sign here.
        numbers = tensors[name].float32() + np.float32(0)
        assert sha256(numbers.tobytes()).hexdigest() == digest, name


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_the_writers_own_to_the_bit(kind):
    same_numbers(GOLDENS / kind)


@pytest.mark.oracle
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_a_checkpoint_made_now(kind, tmp_path):
    script = Path(__file__).parents[2] / "tools" / "quant_writers.py"
    subprocess.run([ORACLE, script, kind, tmp_path / "model"], check=True, capture_output=True)
    same_numbers(tmp_path / "model")


@pytest.mark.parametrize("kind", KINDS)
def test_packed_it_computes_what_the_dequantised_weights_do_within_float32_error(kind):
    checkpoint, tokens = checkpoints.open(GOLDENS / kind), list(range(3, 29))
    option = next(word for start, word in OPTIONS.items() if kind.startswith(start))
    packed = models.load(checkpoint, Config(quantization=option))
    plain = models.load(checkpoint, Config(dtype="float32"))
    kinds = {name for one in packed.weights.matrices() for name in one.dtype.split("+")} - {"bfloat16"}
    assert kinds <= {"nvfp4", "fp8", "fp8_block"}
    assert kinds
    found, expected = (run.logits(model, tokens, range(len(tokens))) for model in (packed, plain))
    assert np.abs(found - expected).max() <= 2e-5 * expected.std()


def test_scales_of_the_cache_are_the_checkpoints():
    model = models.load(checkpoints.open(GOLDENS / "modelopt-fp8-kv"), Config(kv_cache_dtype="fp8_e4m3"))
    (scales,) = model.cache.scales
    assert min(scales) > 0
    assert scales != (1.0, 1.0)
    assert model.memory[0].keys.scales == scales
    assert models.load(checkpoints.open(GOLDENS / "modelopt-fp8-kv"), Config()).cache.dtype == "float32"
