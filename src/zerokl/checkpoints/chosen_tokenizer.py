"""The tokenizer that a server or an `LLM` uses: the checkpoint's own, or what options put in its place."""

from __future__ import annotations

from pathlib import Path

import msgspec

from zerokl import checkpoints
from zerokl.checkpoints.folder_tokenizer import read_tokenizer
from zerokl.checkpoints.view import Checkpoint
from zerokl.config import Config
from zerokl.errors import ConfigError
from zerokl.types import TokenizerFiles


def tokenizer_files(config: Config, checkpoint: Checkpoint) -> TokenizerFiles:
    """The checkpoint's tokenizer, or what options put in its place."""
    files = checkpoint.tokenizer
    if config.tokenizer_path:
        path = Path(config.tokenizer_path).expanduser()
        if path.is_dir():
            files = read_tokenizer(path, checkpoint.config, checkpoint.generation_config)
        else:
            files = checkpoints.open(path).tokenizer
    if files is None:
        raise ConfigError(f"{config.tokenizer_path or checkpoint.path}: no tokenizer there; pass --tokenizer-path")
    if not config.chat_template:
        return files
    try:
        template = Path(config.chat_template).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template {config.chat_template}: {error}") from error
    return msgspec.structs.replace(files, chat_template=template)
