"""Digests: equal for equal weights, different for any other, and read from the files only once."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.checkpoints.tiny import make_tiny_llama
from zerokl import checkpoints
from zerokl.checkpoints import digest
from zerokl.checkpoints.digest import file_digest
from zerokl.errors import CheckpointError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZEROKL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_file_digest_is_sha256_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    expected = hashlib.sha256(b"abc").hexdigest()
    assert file_digest(path) == expected
    monkeypatch.setattr(digest.hashlib, "file_digest", None)  # a second reading would fail
    assert file_digest(path) == expected


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    before = file_digest(path)
    path.write_bytes(b"abd")
    os.utime(path, ns=(1, 1))
    assert file_digest(path) == hashlib.sha256(b"abd").hexdigest() != before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"key": 1}', b'{"key": null, "sha256": "x"}'])
def test_damaged_memory_is_no_error(tmp_path: Path, cache: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    expected = file_digest(path)
    for note in (cache / "digests").iterdir():
        note.write_bytes(content)
    assert file_digest(path) == expected


def test_unwritable_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("ZEROKL_CACHE", str(tmp_path / "file" / "below"))
    assert file_digest(tmp_path / "file") == hashlib.sha256(b"").hexdigest()


def test_missing_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing"):
        file_digest(tmp_path / "nothing")


def test_checkpoint_digest_is_of_weights_and_config_wherever_they_lie(tmp_path: Path) -> None:
    one = checkpoints.open(make_tiny_llama(tmp_path / "one", 1)).digest
    assert checkpoints.open(make_tiny_llama(tmp_path / "two", 1)).digest == one
    assert checkpoints.open(make_tiny_llama(tmp_path / "three", 2)).digest != one
    assert checkpoints.open(make_tiny_llama(tmp_path / "four", 1, rms_norm_eps=1e-6)).digest != one


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ZEROKL_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/zerokl"),
        ({"HOME": "/home/u"}, "/home/u/.cache/zerokl"),
    ],
)
def test_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("ZEROKL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(checkpoints.cache_folder.cache_folder()) == expected
