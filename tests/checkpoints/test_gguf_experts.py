"""Mixtures and convolutions in GGUF: one tensor stacks all experts, layers differ; the model is the folder's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.checkpoints.gguf_families import add_keys, as_converted
from tests.checkpoints.gguf_files import add_tensor
from tests.models.families import config_of, family_model, tensors_of
from tests.models.run import logits
from zerokl import checkpoints, models
from zerokl.config import Config
from zerokl.errors import CheckpointError

FAMILIES = {
    "mixtral": (gguf.MODEL_ARCH.LLAMA, "num_local_experts"),
    "qwen3-moe": (gguf.MODEL_ARCH.QWEN3MOE, "num_experts"),
    "lfm2": (gguf.MODEL_ARCH.LFM2, ""),
}


def write(path: Path, family: str, kind: str = "F32", listed: int = 0) -> Path:
    """As llama.cpp's converter would; names from the `gguf` package's table. `listed`: another number of experts."""
    architecture, key = FAMILIES[family]
    name, config = gguf.MODEL_ARCH_NAMES[architecture], config_of(family)
    table = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, name)
    add_keys(writer, name, config)
    if family == "lfm2":
        heads = [config["num_key_value_heads"] * (kind != "conv") for kind in config["layer_types"]]
        writer.add_head_count_kv(heads)
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    else:
        writer.add_expert_count(listed or config[key])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config.get("moe_intermediate_size", config["intermediate_size"]))
    for hf_name, array in stacked(tensors_of(config)).items():
        stored_name = table.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        kept = kind if array.ndim > 1 else "F32"
        array = array[:, 0] if "conv.conv.weight" in hf_name else as_converted(name, config, hf_name, array)
        add_tensor(writer, stored_name, array, kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """ "...experts.3.w1.weight" of all experts as one "...experts.w1.weight"."""
    found: dict[str, Any] = {}
    for name, array in tensors.items():
        if ".experts." not in name:
            found[name] = array
            continue
        head, tail = name.split(".experts.")
        found.setdefault(f"{head}.experts.{tail.split('.', 1)[1]}", []).append(array)
    return {name: np.stack(array) if isinstance(array, list) else array for name, array in found.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_and_logits_are_those_of_the_folder(tmp_path: Path, family: str) -> None:
    checkpoint = checkpoints.open(write(tmp_path / "x.gguf", family))
    expected = tensors_of(config_of(family))
    assert checkpoint.tensors.keys() == expected.keys()
    for name, tensor in checkpoint.tensors.items():
        assert (tensor.name, tensor.shape, tensor.nbytes) == (name, expected[name].shape, expected[name].nbytes)
        assert tensor.array().tobytes() == expected[name].tobytes(), name
    found = logits(models.load(checkpoint, Config()), range(3, 60), [0, 30, 56])
    expected_model = family_model(family, rope_theta=10000.0)  # a GGUF file always says it; these configs don't
    assert found.tobytes() == logits(expected_model, range(3, 60), [0, 30, 56]).tobytes()


def test_an_expert_of_a_quantised_stack_is_its_part_of_it(tmp_path: Path) -> None:
    """Q8_0's blocks of 32 run along the rows, so an expert is a run of whole blocks."""
    checkpoint = checkpoints.open(write(tmp_path / "x.gguf", "mixtral", "Q8_0"))
    quant = gguf.GGMLQuantizationType.Q8_0
    for expert in (0, 5):
        name = f"model.layers.1.block_sparse_moe.experts.{expert}.w3.weight"
        rounded = gguf.quants.quantize(tensors_of(config_of("mixtral"))[name], quant)
        assert np.array_equal(checkpoint.tensors[name].float32(), gguf.quants.dequantize(rounded, quant))


def test_another_number_of_experts_than_are_stacked_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="doesn't stack 7 experts"):
        checkpoints.open(write(tmp_path / "x.gguf", "mixtral", listed=7))
