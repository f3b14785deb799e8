"""The GGUF container: what the `gguf` package writes is read; what is broken is one error, in bounded memory."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoints.gguf_files import add_tensor, toy_tokenizer_keys, write_llama_gguf
from tests.checkpoints.tiny import TINY, tiny_weights
from zerokl import checkpoints
from zerokl.checkpoints.gguf import read_gguf
from zerokl.errors import CallerError, CheckpointError, UnsupportedModel

CONFIG = TINY | {"vocab_size": 284}


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = tiny_weights(CONFIG, 0)
    return write_llama_gguf(
        tmp_path_factory.mktemp("gguf") / "tiny.gguf", CONFIG, weights, "Q8_0", **toy_tokenizer_keys()
    )


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_tensors_are_those_of_the_gguf_package(tmp_path: Path, kind: str) -> None:
    array = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    add_tensor(writer, "w", array, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stored = gguf.GGUFReader(tmp_path / "x.gguf").tensors[0]
    tensor = read_gguf(tmp_path / "x.gguf").tensors["w"]
    assert (tensor.shape, tensor.dtype, tensor.nbytes) == ((3, 64), kind, stored.n_bytes)
    expected = gguf.quants.dequantize(stored.data, stored.tensor_type)
    assert np.array_equal(tensor.float32().view(np.uint32), expected.view(np.uint32))
    if kind in ("F32", "F16", "BF16"):
        assert not tensor.array().flags.writeable  # a view of the file


@pytest.mark.parametrize(("kind", "place"), [("Q8_0", 0), ("Q4_0", 0), ("Q4_1", 2)])
@pytest.mark.parametrize("bits", [0x7E00, 0x7C00])
def test_a_scale_of_a_block_that_isnt_finite_is_an_error_that_names_the_tensor(
    tmp_path: Path, kind: str, place: int, bits: int
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    add_tensor(writer, "blk.0.w", np.ones((3, 64), np.float32), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = gguf.GGUFReader(tmp_path / "x.gguf").tensors[0]
    with (tmp_path / "x.gguf").open("r+b") as file:
        file.seek(data.data_offset + place)
        file.write(struct.pack("<H", bits))
    packed = read_gguf(tmp_path / "x.gguf").tensors["blk.0.w"].packed
    assert packed
    with pytest.raises(CheckpointError, match=r"'blk\.0\.w' holds a scale that isn't finite"):
        packed()


def test_metadata_of_every_type_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "héllo\n")
    writer.add_array("words", ["a", "", "ü"])
    writer.add_array("numbers", [1, -2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = read_gguf(tmp_path / "x.gguf").metadata
    numbers = found.pop("numbers")
    assert numbers.tolist() == [1, -2, 3]
    assert found.pop("words").list() == ["a", "", "ü"]
    assert found == {
        "general.architecture": "llama", "u8": 255, "i8": -128, "u16": 65535, "i16": -32768, "u32": 2**32 - 1,
        "i32": -(2**31), "u64": 2**64 - 1, "i64": -(2**63), "f32": 0.5, "f64": 0.1, "yes": True, "text": "héllo\n",
    }  # fmt: skip


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def header(version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def tensor_info(name: bytes = b"w", axes: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, kind, offset)


def aligned(content: bytes, num_data_bytes: int = 0) -> bytes:
    return content + bytes(-len(content) % 32 + num_data_bytes)


BROKEN = {
    "empty": (b"", "empty"),
    "another format": (b"PK\3\4" + bytes(40), "not a GGUF file"),
    "version 1": (header(1) + bytes(32), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(32), "big-endian"),
    "absurd tensor count": (header(tensors=2**60) + bytes(32), "absurd counts"),
    "absurd key count": (header(keys=2**60) + bytes(32), "absurd counts"),
    "more keys than bytes": (header(keys=60_000) + bytes(32), "truncated|twice|unknown"),
    "string past the end": (header(keys=1) + struct.pack("<Q", 2**63) + b"abc", "truncated"),
    "key not UTF-8": (header(keys=1) + string(b"\xff\xfe") + struct.pack("<II", 4, 1), "not UTF-8"),
    "unknown value type": (header(keys=1) + string(b"k") + struct.pack("<II", 99, 1), "unknown metadata type 99"),
    "nested array": (header(keys=1) + string(b"k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64), "metadata type 9"),
    "array past the end": (header(keys=1) + string(b"k") + struct.pack("<IIQ", 9, 4, 2**20) + bytes(64), "truncated"),
    "array absurdly long": (header(keys=1) + string(b"k") + struct.pack("<IIQ", 9, 0, 2**40) + bytes(64), "limit"),
    "strings past the end": (header(keys=1) + string(b"k") + struct.pack("<IIQ", 9, 8, 2**20) + bytes(64), "truncated"),
    "same key twice": (header(keys=2) + (string(b"k") + struct.pack("<II", 4, 1)) * 2, "stands twice"),
    "no axes": (aligned(header(tensors=1) + tensor_info(axes=())), "0 axes"),
    "five axes": (aligned(header(tensors=1) + tensor_info(axes=(1,) * 5)), "5 axes"),
    "zero axis": (aligned(header(tensors=1) + tensor_info(axes=(0, 4))), "absurd shape"),
    "overflowing shape": (aligned(header(tensors=1) + tensor_info(axes=(2**40, 2**40))), "absurd shape"),
    "tensor past the end": (aligned(header(tensors=1) + tensor_info(axes=(2**20,))), "truncated: tensor 'w'"),
    "offset past the end": (aligned(header(tensors=1) + tensor_info(offset=2**40)), "truncated: tensor 'w'"),
    "unaligned offset": (aligned(header(tensors=1) + tensor_info(offset=1), 256), "not a multiple of 32"),
    "part of a block": (aligned(header(tensors=1) + tensor_info(axes=(33,), kind=8), 256), "not whole Q8_0 blocks"),
    "same tensor twice": (aligned(header(tensors=2) + tensor_info() + tensor_info(offset=128), 256), "stands twice"),
    "overlap": (aligned(header(tensors=2) + tensor_info() + tensor_info(b"v", offset=96), 256), "overlaps"),
    "absurd name": (aligned(header(tensors=1) + tensor_info(b"\x1b[2J"), 256), "absurd name"),
    "alignment not a power of two": (
        aligned(header(keys=1) + string(b"general.alignment") + struct.pack("<II", 4, 48)),
        "alignment is 48",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("content", "cause"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_file_is_one_error_with_its_cause(tmp_path: Path, content: bytes, cause: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"broken\.gguf: .*({cause})") as caught:
        read_gguf(path)
    assert str(caught.value).count(path.name) == 1


def test_an_unknown_type_says_which_are_read_and_which_is_near(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(aligned(header(tensors=1) + tensor_info(kind=16), 256))
    with pytest.raises(UnsupportedModel, match=r"'w' is IQ2_XXS, .*; supported: F32, F16, .*; nearest: IQ4_XS"):
        read_gguf(path)


def test_hostile_counts_cost_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(header(keys=1) + string(b"k") + struct.pack("<IIQ", 9, 8, 2**24) + bytes(1000))
    tracemalloc.start()
    with pytest.raises(CheckpointError):
        read_gguf(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9, 0.999])
def test_truncated_anywhere_is_one_error(tmp_path: Path, tiny_gguf: Path, share: float) -> None:
    content = tiny_gguf.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"cut\.gguf: truncated"):
        checkpoints.open(path)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_read_or_is_our_error(tmp_path: Path, tiny_gguf: Path, data: st.DataObject) -> None:
    content = bytearray(tiny_gguf.read_bytes())
    metadata_bytes = content.find(b"tokenizer.ggml.tokens")
    infos = content.find(b"token_embd.weight")
    for _ in range(data.draw(st.integers(1, 3))):
        near = data.draw(st.sampled_from([(0, metadata_bytes + 60), (infos - 20, infos + 1500)]))
        content[data.draw(st.integers(*near))] = data.draw(st.integers(0, 255))
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with contextlib.suppress(CallerError):
        for tensor in checkpoints.open(path).tensors.values():
            tensor.array()
