"""5,000 texts of every kind (code, scripts, emoji, controls, long runs), encoded and decoded as transformers does.

Each way of cutting words is asked twice: from a release's tokenizer.json, and from a GGUF file that only names it. The
goldens hold a digest of every ten answers (tools/tokenizer_goldens.py); the vocabularies are toy.json's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.gguf_files import write_bpe_gguf, write_sentencepiece_gguf
from tests.tokenizer.many import COUNT, many_texts
from tests.tokenizer.releases import RELEASES, write_release
from zerokl.checkpoints.folder_tokenizer import read_tokenizer as read_folder
from zerokl.checkpoints.gguf import read_gguf
from zerokl.checkpoints.gguf_tokenizer import read_tokenizer
from zerokl.checkpoints.pre_tokenizers import ALIASES, PRE_TOKENIZERS
from zerokl.tokenizer import Tokenizer

GOLDENS = Path(__file__).parent.parent / "goldens" / "tokenizer"
BLOCK = 10


@cache
def golden(name: str) -> Any:
    return json.loads((GOLDENS / f"{name}.json").read_text())


def digests(values: Sequence[Any]) -> str:
    """As tools/tokenizer_oracle.py does it."""
    blocks = (json.dumps(values[i : i + BLOCK]).encode() for i in range(0, len(values), BLOCK))
    return "".join(hashlib.sha256(one).hexdigest()[:4] for one in blocks)


def assert_as_transformers(kind: str, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    expected = golden("many")["kinds"][kind]
    assert expected["texts"] == len(texts)
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert_blocks("ids", texts, digests(ids), expected["ids"])
    assert_blocks("text", texts, digests([tokenizer.decode(one) for one in ids]), expected["decoded"])


def assert_blocks(what: str, texts: Sequence[str], found: str, expected: str) -> None:
    places = [i for i in range(0, len(expected), 4) if found[i : i + 4] != expected[i : i + 4]]
    assert len(found) == len(expected)
    assert not places, (
        f"{len(places)} blocks of other {what}, the first among {texts[places[0] // 4 * BLOCK :][:BLOCK]}"
    )


def of_folder(kind: str, folder: Path) -> Tokenizer:
    bpe = golden("toy")["bpe"]
    files = read_folder(write_release(folder / kind, kind, bpe["merges"], bpe["special"]), {}, {})
    assert files is not None
    return Tokenizer(files)


def of_gguf(kind: str, folder: Path) -> Tokenizer:
    bpe = golden("toy")["bpe"]
    return of_file(write_bpe_gguf(folder / "x.gguf", kind, bpe["merges"], bpe["special"]))


def of_file(path: Path) -> Tokenizer:
    files = read_tokenizer(read_gguf(path))
    assert files is not None
    return Tokenizer(files)


@pytest.mark.slow
@pytest.mark.parametrize("make", [of_folder, of_gguf], ids=["tokenizer.json", "GGUF"])
@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
def test_byte_level(kind: str, make: Callable[[str, Path], Tokenizer], tmp_path: Path) -> None:
    assert_as_transformers(kind, make(kind, tmp_path), many_texts())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "prefix"), [("llama", True), ("gemma", False)])
def test_sentencepiece(kind: str, prefix: bool, tmp_path: Path) -> None:
    """Less the texts in which a special token may be spelt, after which Llama's classes differ from each other."""
    pieces = golden("toy")["sentencepiece"]
    keys = {"tokenizer__ggml__add_space_prefix": prefix}
    file = write_sentencepiece_gguf(tmp_path / "x.gguf", pieces["tokens"], pieces["scores"], pieces["types"], **keys)
    assert_as_transformers(kind, of_file(file), [text for text in many_texts() if "<" not in text])


def test_every_way_of_cutting_has_a_golden_of_its_own() -> None:
    kinds = dict(golden("many")["kinds"])
    assert len(many_texts()) == COUNT
    assert PRE_TOKENIZERS.keys() == RELEASES.keys() == kinds.keys() - {"llama", "gemma"}
    assert kinds.pop("dbrx") == kinds["llama-bpe"]  # but for words taken whole, which merges reach here anyway
    assert len({kind["ids"] for kind in kinds.values()}) == len(kinds)


def test_another_name_means_what_it_stands_for(tmp_path: Path) -> None:
    bpe = golden("toy")["bpe"]
    for alias, kind in ALIASES.items():
        named = of_file(write_bpe_gguf(tmp_path / f"{alias}.gguf", alias, bpe["merges"], bpe["special"]))
        assert named.digest == of_gguf(kind, tmp_path).digest
