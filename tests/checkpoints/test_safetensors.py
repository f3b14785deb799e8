"""Safetensors: what the format's own library writes is read exactly; what is broken is one error naming the file."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoints.tiny import make_tiny_llama, tiny_weights, write_safetensors
from zerokl import checkpoints
from zerokl.checkpoints.safetensors import read_file, read_folder
from zerokl.errors import CheckpointError

ARRAYS = {
    "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "f16": np.array([1.5, -0.0, 65504], np.float16),
    "i64": np.array([[-1]], np.int64),
    "scalar": np.array(7.0, np.float32),
    "empty": np.zeros((0, 4), np.float32),
}


def test_reads_what_the_safetensors_package_writes(tmp_path: Path) -> None:
    safetensors.numpy.save_file(ARRAYS, tmp_path / "x.safetensors")
    read = read_file(tmp_path / "x.safetensors")
    assert read.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        found = read[name].array()
        assert (read[name].shape, found.dtype, found.tobytes()) == (array.shape, array.dtype, array.tobytes())


@pytest.mark.parametrize(
    ("dtype", "array_dtype"), [("float32", np.float32), ("float16", np.float16), ("bfloat16", np.uint16)]
)
def test_arrays_are_views_of_the_file_as_stored(tmp_path: Path, dtype: str, array_dtype: type) -> None:
    folder = make_tiny_llama(tmp_path, 0, torch_dtype=dtype)
    tensor = read_folder(folder)["model.embed_tokens.weight"]
    array = tensor.array()
    assert array.dtype == array_dtype
    assert array.base is not None
    assert not array.flags.writeable
    assert array.nbytes == tensor.nbytes


def test_bf16_widens_to_its_exact_float32(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x.safetensors", {"w": np.array([1.0, -2.5, 3e38, np.inf], np.float32)}, "bfloat16")
    assert read_file(tmp_path / "x.safetensors")["w"].float32()[:2].tolist() == [1.0, -2.5]


def test_odd_header_length_still_gives_aligned_arrays(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    header += b" " * (1 + len(header) % 2)  # an odd length
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\x80?\0\0\0@")
    array = read_file(tmp_path / "x.safetensors")["w"].array()
    assert array.flags.aligned
    assert array.tolist() == [1.0, 2.0]


def test_shards_give_the_tensors_of_one_file(tmp_path: Path) -> None:
    whole = read_folder(make_tiny_llama(tmp_path / "one", 5))
    parts = read_folder(make_tiny_llama(tmp_path / "three", 5, shards=3))
    assert whole.keys() == parts.keys()
    assert all(whole[name].array().tobytes() == parts[name].array().tobytes() for name in whole)


def broken_header(entry: dict[str, Any], data: bytes = bytes(8)) -> bytes:
    header = json.dumps({"w": entry}).encode()
    return len(header).to_bytes(8, "little") + header + data


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BROKEN = {
    "empty file": b"",
    "seven bytes": b"1234567",
    "header longer than the file": (1 << 40).to_bytes(8, "little") + b"{}",
    "header not JSON": (2).to_bytes(8, "little") + b"{{",
    "header a list": (2).to_bytes(8, "little") + b"[]",
    "deep JSON": (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "data too short": broken_header(GOOD, bytes(7)),
    "data too long": broken_header(GOOD, bytes(9)),
    "unknown dtype": broken_header(GOOD | {"dtype": "F31"}),
    "dtype a list": broken_header(GOOD | {"dtype": ["F32"]}),
    "shape not the size": broken_header(GOOD | {"shape": [3]}),
    "negative shape": broken_header(GOOD | {"shape": [-1, -2]}),
    "shape of bools": broken_header(GOOD | {"shape": [True, 2]}),
    "huge shape": broken_header(GOOD | {"shape": [2**61, 2**61]}),
    "integer beyond 64 bits": broken_header(GOOD | {"shape": [2**70]}),
    "no offsets": broken_header({"dtype": "F32", "shape": [2]}),
    "offsets reversed": broken_header(GOOD | {"data_offsets": [8, 0]}),
    "three offsets": broken_header(GOOD | {"data_offsets": [0, 8, 8]}),
    "entry a number": broken_header(5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_broken_file_is_one_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"broken\.safetensors"):
        read_file(path)


def test_overlapping_tensors_and_holes_are_refused(tmp_path: Path) -> None:
    for second in ([4, 12], [9, 17]):
        header = json.dumps({"a": GOOD, "b": {"dtype": "F32", "shape": [2], "data_offsets": second}}).encode()
        path = tmp_path / "x.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(second[1]))
        with pytest.raises(CheckpointError, match="'b' starts at byte"):
            read_file(path)


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31m", "x" * 600, "\u202egpj"])
def test_absurd_names_are_refused(tmp_path: Path, name: str) -> None:
    header = json.dumps({name: GOOD}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(CheckpointError, match="absurd name"):
        read_file(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    "shard", ["../evil.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..\\x.safetensors", "x.bin", "", 5, None]
)
def test_shard_names_can_not_lead_out_of_the_folder(tmp_path: Path, shard: Any) -> None:
    folder = make_tiny_llama(tmp_path / "m", 0, shards=2)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = shard
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"index\.json.*not the plain name"):
        checkpoints.open(folder)


def test_index_that_lies_about_a_tensor_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "m", 0, shards=2)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.ghost.weight"] = content["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"model\.ghost\.weight"):
        checkpoints.open(folder)


def test_same_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "m", 0, shards=2)
    shards = sorted(folder.glob("*.safetensors"))
    shards[1].write_bytes(shards[0].read_bytes())
    with pytest.raises(CheckpointError, match="is also in"):
        checkpoints.open(folder)


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "m", 0)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="never reads pickle"):
        checkpoints.open(folder)


SAMPLE = tiny_weights({"hidden_size": 8, "intermediate_size": 8, "head_dim": 4, "num_attention_heads": 2,
                       "num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": 9, "attention_bias": False,
                       "mlp_bias": False, "tie_word_embeddings": True}, 0)  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_read_or_is_a_checkpoint_error(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "x.safetensors"
    write_safetensors(path, SAMPLE)
    content = bytearray(path.read_bytes())
    header_bytes = int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 8 + header_bytes - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    with contextlib.suppress(CheckpointError):
        for tensor in read_file(path).values():
            tensor.array()
