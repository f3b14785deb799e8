"""The run folder: what the processes of one server share. Private, because the config holds its keys.

config.json   tokenizer.json   chat_template.jinja   special_tokens.json   engine.sock
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from zerokl.config import Config, options

CONFIG = "config.json"
POLL_S = 0.01


def new_run_folder() -> tempfile.TemporaryDirectory[str]:
    """Only for this user, gone when it is closed. Its path is short: a socket's may have 100 characters."""
    return tempfile.TemporaryDirectory(prefix="zerokl-")


def write_config(folder: Path, config: Config) -> None:
    """The last file to be written: it tells the processes that the folder is complete."""
    new = folder / (CONFIG + ".new")
    new.touch(mode=0o600)  # it may hold keys, and outlives a supervisor that is killed
    new.write_bytes(orjson.dumps(dataclasses.asdict(config)))
    new.rename(folder / CONFIG)


def await_config(folder: Path) -> Config:
    """The config, when it is there: processes are started, and load their code, while the model is still looked for."""
    while not (folder / CONFIG).exists():
        time.sleep(POLL_S)
    return read_config(folder)


def read_config(folder: Path) -> Config:
    values: dict[str, Any] = orjson.loads((folder / CONFIG).read_bytes())
    lists = {field.name for field in options() if str(field.type).startswith("tuple")}
    values |= {name: tuple(values[name]) for name in lists}
    return Config(**values)
