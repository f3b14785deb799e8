"""Split GGUF files: any part opens the whole, and parts that don't belong together are one error."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.checkpoints.gguf_files import add_tensor
from zerokl.checkpoints.gguf_split import read_parts
from zerokl.errors import CheckpointError


def write_part(path: Path, tensors: list[str], **keys: int) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in keys.items():
        writer.add_uint32(key.replace("__", "."), value)
    for name in tensors:
        add_tensor(writer, name, np.full((2, 2), len(name), np.float32), "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_three(folder: Path, counts: tuple[int, int, int] = (3, 3, 3), numbers: tuple[int, int, int] = (0, 1, 2)):
    names = (["a", "b"], ["c"], ["d", "e"])
    return [
        write_part(
            folder / f"m-{i + 1:05}-of-00003.gguf",
            names[i],
            split__no=numbers[i],
            split__count=counts[i],
            split__tensors__count=5,
        )
        for i in range(3)
    ]


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_part_opens_all(tmp_path: Path, opened: int) -> None:
    parts = write_three(tmp_path)
    file, paths = read_parts(parts[opened])
    assert paths == parts
    assert list(file.tensors) == ["a", "b", "c", "d", "e"]
    assert file.metadata["split.no"] == 0


def test_a_file_that_is_whole_is_itself(tmp_path: Path) -> None:
    path = write_part(tmp_path / "x.gguf", ["a"])
    assert read_parts(path)[1] == [path]


def refused(path: Path, why: str) -> None:
    with pytest.raises(CheckpointError, match=why):
        read_parts(path)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    parts = write_three(tmp_path)
    parts[1].unlink()
    refused(parts[0], re.escape("1 of 3 parts are missing, the first is m-00002-of-00003.gguf"))


def test_a_renamed_part_says_what_it_should_be_called(tmp_path: Path) -> None:
    refused(write_three(tmp_path)[0].rename(tmp_path / "model.gguf"), r"one part of 3, .*-00001-of-00003\.gguf")
    refused(write_part(tmp_path / "m-00001-of-00002.gguf", [], split__count=3), "one part of 3")


def test_a_million_parts_are_refused_before_any_is_looked_for(tmp_path: Path) -> None:
    refused(write_part(tmp_path / "m-00001-of-99999.gguf", [], split__count=99999), "one part of 99999")


def test_parts_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    refused(write_three(tmp_path, numbers=(0, 2, 1))[0], "says it is part 2 of 3, not 1 of 3")
    refused(write_three(tmp_path, counts=(3, 3, 4))[0], "says it is part 2 of 4, not 2 of 3")


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    parts = write_three(tmp_path)
    write_part(parts[2], ["d", "a"], split__no=2, split__count=3)
    refused(parts[0], "tensor 'a' is also in an earlier part")


def test_too_few_tensors_are_refused(tmp_path: Path) -> None:
    parts = write_three(tmp_path)
    write_part(parts[2], ["d"], split__no=2, split__count=3)
    refused(parts[0], "the parts hold 4 tensors, not 5")
