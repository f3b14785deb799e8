"""The run folder: the tokenizer as engine and frontends load it, written once by whoever opened the checkpoint.

tokenizer.json   chat_template.jinja   special_tokens.json

Each file appears whole, the last one last: whoever waits for the folder waits for that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from msgspec.structs import asdict

from zerokl.errors import CheckpointError
from zerokl.types import SpecialTokens, TokenizerFiles

FILES = ("tokenizer.json", "chat_template.jinja", "special_tokens.json")


def write_run_folder(folder: Path, files: TokenizerFiles) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    contents = (files.tokenizer_json, files.chat_template, special_json(files.special))
    for name, content in zip(FILES, contents, strict=True):
        write_whole(folder / name, content.encode())


def write_whole(path: Path, content: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.rename(path)


def is_written(folder: Path) -> bool:
    return (folder / FILES[-1]).exists()


def read_run_folder(folder: Path) -> TokenizerFiles:
    try:
        tokenizer_json, chat_template, special = ((folder / name).read_bytes().decode() for name in FILES)
        return TokenizerFiles(tokenizer_json, _special(orjson.loads(special)), chat_template)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{folder}: not a run folder: {error}") from error


def special_json(special: SpecialTokens) -> str:
    fields = asdict(special) | {"names": dict(special.names)}
    return orjson.dumps(fields, option=orjson.OPT_INDENT_2).decode() + "\n"


def _special(fields: dict[str, Any]) -> SpecialTokens:
    names, ends = tuple(fields.pop("names").items()), tuple(fields.pop("eos_ids"))
    return SpecialTokens(**fields, names=names, eos_ids=ends)
