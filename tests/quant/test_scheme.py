"""What configs say about quantisation."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.checkpoints.tiny import make_tiny_llama
from tests.quant.nvfp4_files import write_stored
from zerokl import checkpoints
from zerokl.checkpoints.companions import with_companions
from zerokl.checkpoints.view import Tensor
from zerokl.errors import CheckpointError, ConfigError, UnsupportedModel
from zerokl.quant import Scheme, check_option, scheme_of

NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("entry", "module", "matched"),
    [
        ("lm_head", "lm_head", True),
        ("model.layers.5.attn", "model.layers.5.attn", True),
        ("model.layers.5.attn", "model.layers.5.attn.q_proj", True),
        ("model.layers.5.attn", "model.layers.5.attn_norm", False),
        ("model.layers.5", "model.layers.55.mlp", False),
        ("layers.5.mlp", "model.language_model.layers.5.mlp.up_proj", True),
        ("model.layers.*.mlp.gate", "model.layers.3.mlp.gate", True),
        ("model.layers.0.self_attn*", "model.layers.0.self_attn.q_proj", True),
        ("*router*", "model.layers.0.router", True),
        ("re:.*lm_head", "model.lm_head", True),
        ("re:.*mlp", "model.layers.0.self_attn", False),
    ],
)
def test_an_entry_is_a_module_or_what_it_is_in(entry, module, matched):
    assert Scheme("modelopt", "NVFP4", (entry,)).leaves_out(module) == matched


def test_two_files_must_agree():
    separate = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    assert (
        scheme_of({}, separate)
        == scheme_of({"quantization_config": NVFP4})
        == scheme_of({"quantization_config": NVFP4}, separate)
    )
    with pytest.raises(CheckpointError, match="disagree about the quantisation: modelopt NVFP4 and modelopt FP8"):
        scheme_of({"quantization_config": NVFP4}, {"quantization": {"quant_algo": "FP8"}})


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "gptq"},
        {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"},
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
        {"quant_method": "fp8", "weight_block_size": [64, 64]},
    ],
)
def test_what_isnt_read_is_named(config):
    with pytest.raises(UnsupportedModel, match=r"gptq|NVFP4_AWQ|pack-quantized|64"):
        scheme_of({"quantization_config": config})


def test_the_option_is_refused_where_it_contradicts():
    check_option("", None, False)
    check_option("gguf", None, True)
    check_option("fp8", Scheme("fp8", "e4m3", ()), False)
    with pytest.raises(ConfigError, match="--quantization fp8: the checkpoint isn't quantised"):
        check_option("fp8", None, False)
    with pytest.raises(ConfigError, match="--quantization fp8: the checkpoint says gguf"):
        check_option("fp8", None, True)


def fp8(shape: tuple[int, ...], scale: np.ndarray | None, name: str = "weight_scale") -> dict[str, Tensor]:
    arrays = {"a.q_proj.weight": ("F8_E4M3", np.ones(shape, np.uint8))}
    if scale is not None:
        arrays[f"a.q_proj.{name}"] = ("F32", scale)
    return {n: Tensor(n, x.shape, dtype, x.nbytes, lambda x=x: x) for n, (dtype, x) in arrays.items()}


@pytest.mark.parametrize(
    ("scale", "kind"),
    [
        (np.ones(()), "FP8"),
        (np.ones(1), "FP8"),
        (np.ones(160), "FP8"),
        (np.ones((160, 1)), "FP8"),
        (np.ones((2, 3)), "FP8_BLOCK"),
        (np.ones((2, 1, 3, 1)), "FP8_BLOCK"),
    ],
)
def test_the_shape_of_a_scale_says_what_shares_it(scale, kind, tmp_path):
    scheme = Scheme("fp8", "e4m3", ())
    found = with_companions(tmp_path, fp8((160, 300), scale.astype(np.float32)), scheme)["a.q_proj.weight"]
    assert (found.dtype, found.shape) == (kind, (160, 300))
    found = with_companions(tmp_path, fp8((160, 300), scale.astype(np.float32), "weight_scale_inv"), scheme)
    assert list(found) == ["a.q_proj.weight"]


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (None, "'a.q_proj.weight' .* companion 'a.q_proj.weight_scale' is missing"),
        (np.ones((3, 3)), r"'a.q_proj.weight_scale' has shape \[3, 3\], not"),
        (np.array(np.nan), "'a.q_proj.weight_scale' holds a number that isn't finite"),
    ],
)
def test_a_broken_scale_is_named(scale, message, tmp_path):
    scale = None if scale is None else scale.astype(np.float32)
    with pytest.raises(CheckpointError, match=message):
        with_companions(tmp_path, fp8((160, 300), scale), Scheme("fp8", "e4m3", ()))["a.q_proj.weight"].array()


def test_a_nan_among_the_codes_is_named(tmp_path):
    tensors = fp8((160, 300), np.ones((), np.float32))
    tensors["a.q_proj.weight"].array()[7, 7] = 0xFF
    with pytest.raises(CheckpointError, match=r"'a.q_proj.weight' holds a NaN"):
        with_companions(tmp_path, tensors, Scheme("fp8", "e4m3", ()))["a.q_proj.weight"].array()


def test_quantised_tensors_without_a_word_in_the_config_are_an_error(tmp_path):
    folder = make_tiny_llama(tmp_path / "model", 0, num_hidden_layers=1)
    config = json.loads((folder / "config.json").read_text())
    stored = {"model.layers.0.mlp.up_proj.weight": ("F8_E4M3", np.zeros((96, 64), np.uint8))}
    write_stored(folder / "model.safetensors", stored | {"x.weight_scale": ("F32", np.ones(1, np.float32))})
    with pytest.raises(CheckpointError, match=r"up_proj\.weight"):
        checkpoints.open(folder)
    assert "quantization_config" not in config
