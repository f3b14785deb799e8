"""A tiny Inkling in NVFP4, named and laid out as the release: loads, and computes what transformers does."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.models import run
from tests.models.families import family_questions
from tests.models.test_goldens import BOUND, errors, golden
from tests.models.variants import NEW_TOKENS
from tests.quant.nvfp4_files import LEFT_OUT, quantised_inkling, write_packed
from zerokl import checkpoints, models
from zerokl.config import Config
from zerokl.errors import CheckpointError, ConfigError

stored = cache(lambda: quantised_inkling()[1])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> models.Model:
    return loaded(write_packed(tmp_path_factory.mktemp("nvfp4") / "model", stored()))


def loaded(folder: Path, **options) -> models.Model:
    return models.load(checkpoints.open(folder), Config(**options))


def test_experts_stay_packed_in_the_layers_that_have_them_so(model):
    kinds = [{one.dtype for one in layer.experts_gate_up or []} for layer in model.weights.layers]
    assert kinds == [set(), {"float32"}, {"nvfp4"}, {"nvfp4"}]
    packed = sum(one.nbytes for one in model.weights.matrices() if one.dtype == "nvfp4")
    on_disk = sum(array.nbytes for dtype, array in stored().values() if dtype in ("U8", "F8_E4M3"))
    assert packed <= 1.05 * on_disk


def test_logits_are_as_near_to_float64_as_transformers_are_on_the_dequantised_weights(model):
    arrays, _ = golden("inkling-nvfp4")
    for i, question in enumerate(family_questions("inkling")):
        found = run.logits(model, question.tokens, question.rows)[:, question.ids]
        measured = errors(found, arrays[f"{i}/float32"], arrays[f"{i}/float64"])
        assert max(measured.values()) <= BOUND, measured


def test_greedy_tokens_are_transformers(model):
    expected = golden("inkling-nvfp4")[0]["0/greedy64"].tolist()
    assert run.greedy(model, [family_questions("inkling")[0].tokens], NEW_TOKENS) == [expected]


def test_a_factor_or_an_order_that_is_wrong_shows(tmp_path):
    """What the two tests above would miss if they compared too loosely."""
    name = "model.llm.layers.2.mlp.experts.w13_weight"
    wrong = dict(stored())
    codes = wrong[name][1]
    wrong[name] = ("U8", codes >> 4 | codes << 4)
    question, (arrays, _) = family_questions("inkling")[1], golden("inkling-nvfp4")
    found = run.logits(loaded(write_packed(tmp_path / "nibbles", wrong)), question.tokens, question.rows)
    assert max(errors(found[:, question.ids], arrays["1/float32"], arrays["1/float64"]).values()) > 100 * BOUND


@pytest.mark.parametrize("entry", ["model.llm.layers.2.mlp.expert", "layers.2.mlp.experts_", "model.llm.layers.20"])
def test_part_of_a_component_leaves_nothing_out(tmp_path, entry):
    loaded(write_packed(tmp_path / "model", stored(), [*LEFT_OUT, entry]))


@pytest.mark.parametrize("entry", ["model.llm.layers.2.mlp.experts", "layers.2", "model.llm.layers.*.mlp.experts"])
def test_a_list_that_leaves_out_what_is_packed_is_an_error(tmp_path, entry):
    with pytest.raises(CheckpointError, match=r"config leaves their modules out: .*layers\.2\.mlp\.experts"):
        checkpoints.open(write_packed(tmp_path / "model", stored(), [*LEFT_OUT, entry]))


def test_a_list_that_doesnt_leave_out_what_is_plain_is_an_error(tmp_path):
    listed = [entry for entry in LEFT_OUT if "layers.1.mlp.experts" not in entry]
    with pytest.raises(CheckpointError, match=r"doesn't leave them out: .*layers\.1\.mlp\.experts\.w13_weight"):
        checkpoints.open(write_packed(tmp_path / "model", stored(), listed))


NAME = "model.llm.layers.3.mlp.experts.w2_weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{NAME}.scale": None}, rf"'{NAME}' .* companion '{NAME}.scale' is missing"),
        ({f"{NAME}.scale2": None}, rf"'{NAME}' .* companion '{NAME}.scale2' is missing"),
        ({f"{NAME}.scale": lambda a: a[:, :, :2].copy()}, rf"'{NAME}.scale' has shape .*, not \[10, 64, 3\]"),
        ({f"{NAME}.scale2": lambda a: a[:1].copy()}, rf"'{NAME}.scale2' is F32 \[1\], not F32 \[10\]"),
        ({f"{NAME}.scale": lambda a: np.where(np.arange(3) == 1, 0x7F, a)}, rf"'{NAME}.scale' holds a NaN"),
        ({f"{NAME}.scale2": lambda a: a * np.float32(np.nan)}, rf"'{NAME}.scale2' holds no positive number"),
        ({f"{NAME}.scale2": lambda a: a * np.float32(0)}, rf"'{NAME}.scale2' holds no positive number"),
        ({NAME: lambda a: a[:, :, :20].copy()}, rf"'{NAME}' has rows of 40 numbers, not whole blocks of 16"),
    ],
)
def test_what_is_broken_is_one_error_that_names_the_tensor(tmp_path, change, message):
    broken = dict(stored())
    for name, edit in change.items():
        dtype, array = broken.pop(name)
        if edit:
            broken[name] = (dtype, edit(array).astype(array.dtype))
    with pytest.raises(CheckpointError, match=message):
        loaded(write_packed(tmp_path / "model", broken))


def test_the_option_says_no_more_than_the_checkpoint(tmp_path):
    folder = write_packed(tmp_path / "model", stored())
    for right in ("modelopt_fp4", "modelopt", ""):
        loaded(folder, quantization=right)
    for wrong in ("modelopt_fp8", "fp8", "gguf", "compressed-tensors"):
        with pytest.raises(ConfigError, match=f"--quantization {wrong}: the checkpoint says modelopt_fp4"):
            loaded(folder, quantization=wrong)
