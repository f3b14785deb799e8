"""The tokenizer that a server uses: the model's own, or the one that options name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from zerokl import checkpoints
from zerokl.checkpoints.folder_tokenizer import read_tokenizer
from zerokl.config import Config
from zerokl.errors import ConfigError
from zerokl.types import TokenizerFiles


def tokenizer_files(config: Config) -> TokenizerFiles:
    """Raises CheckpointError for a broken file, ConfigError if there is no tokenizer or no such template."""
    checkpoint = checkpoints.open(config.model, load_format=config.load_format)
    files = checkpoint.tokenizer
    if config.tokenizer_path:
        path = Path(config.tokenizer_path).expanduser()
        if path.is_dir():
            files = read_tokenizer(path, checkpoint.config, checkpoint.generation_config)
        else:
            files = checkpoints.open(path).tokenizer
    if files is None:
        raise ConfigError(
            f"{config.tokenizer_path or config.model}: no tokenizer there; name one with --tokenizer-path"
        )
    return files if not config.chat_template else dataclasses.replace(files, chat_template=_template(config))


def _template(config: Config) -> str:
    try:
        return Path(config.chat_template).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template {config.chat_template}: {error}") from error
